#!/bin/sh
# Makes the pools albert-cpu and albert-gpu at PREFECT_API_URL, and the deployments of prefect.yaml in
# them: the text's on CPU nodes, the model's on GPU nodes. cluster.yaml runs it; by hand, from the
# repository's root:  ALBERT_TRAINER_IMAGE=registry.example.org/albert/trainer:0.2.0 sh infra/kubernetes/deploy.sh
set -eu
: "${ALBERT_TRAINER_IMAGE:?the image of the jobs}"

for pool in cpu gpu; do
  prefect --no-prompt work-pool create "albert-$pool" --type kubernetes --overwrite \
    --base-job-template "infra/kubernetes/${pool}_pool.json"
done

deploy() {
  prefect --no-prompt deploy --name "$1" --pool "$2" --job-variable "image=$ALBERT_TRAINER_IMAGE"
}
deploy refresh-corpus albert-cpu
deploy pretrain-albert albert-gpu
deploy evaluate-albert albert-gpu

python -m infra.prefect_rules --pool albert-cpu
python -m infra.prefect_rules --pool albert-gpu
