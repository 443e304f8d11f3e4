#!/bin/sh
# Creates the pools albert-cpu and albert-gpu at PREFECT_API_URL, and deploys the flows of prefect.yaml
# to them: those of the text to CPU nodes, those of the model to GPU nodes. cluster.yaml runs it. By
# hand, in the root of the repository, with the extra `kubernetes`:
#
#   ALBERT_TRAINER_IMAGE=registry.example.org/albert/trainer:0.2.0 sh infra/kubernetes/deploy.sh
set -eu
: "${ALBERT_TRAINER_IMAGE:?the image of the jobs}"

template=$(mktemp)
for pool in cpu gpu; do
  python -m infra.deployments "$pool" > "$template"
  prefect --no-prompt work-pool create "albert-$pool" --type kubernetes --overwrite \
    --base-job-template "$template"
done

deploy() {
  python -m infra.deployments --name "$1" --pool "$2" --job-variable "image=$ALBERT_TRAINER_IMAGE"
}
deploy refresh-corpus albert-cpu
deploy pretrain-albert albert-gpu
deploy evaluate-albert albert-gpu

python -m infra.deployments --pool albert-cpu
python -m infra.deployments --pool albert-gpu
