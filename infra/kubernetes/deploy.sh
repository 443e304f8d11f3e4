#!/bin/sh
# Creates the pools albert-cpu and albert-gpu at PREFECT_API_URL, deploys the flows of prefect.yaml to
# them (those of the text to CPU nodes, those of the model to GPU nodes), and applies the rules of
# prefect_rules.yaml. cluster.yaml runs it. By hand, in the root of the repository, with the extra
# `kubernetes`:
#
#   ALBERT_TRAINER_IMAGE=registry.example.org/albert/trainer@sha256:... sh infra/kubernetes/deploy.sh
set -eu
: "${ALBERT_TRAINER_IMAGE:?the image of the jobs}"

deploy() {
  python -m infra.deployments --rules --job-variable "image=$ALBERT_TRAINER_IMAGE" "$@"
}
deploy --kubernetes gpu --name pretrain-albert --name evaluate-albert
deploy --kubernetes cpu --name refresh-corpus
