#!/bin/bash
# Startup script of a TPU VM: installs the project, and starts a Prefect worker as a service. Each
# boot runs it again and so updates the code. A queued resource waits until a TPU is available:
#
#   prefect work-pool create albert-tpu --type process
#   python -m infra.deployments --name pretrain-albert --pool albert-tpu
#   gcloud compute tpus queued-resources create albert --node-id albert --zone europe-west4-b \
#     --accelerator-type v5litepod-8 --runtime-version v2-alpha-tpuv5-lite --spot \
#     --metadata albert-archive=gs://bucket/albert.tar.gz \
#     --metadata-from-file startup-script=infra/tpu/startup.sh,albert-settings=worker.env
#
# `git archive --format tar.gz HEAD` makes albert.tar.gz. worker.env is a filled-in copy of
# infra/hosts/albert-worker.env.example, with ALBERT_POOL=albert-tpu and ALBERT_WORK=gs://... .
# Whoever can read the VM's metadata can read worker.env: put no passwords there, but give rights to
# the VM's account. One process uses all chips of the host; several hosts are not supported.
set -euo pipefail

metadata() {
  curl --fail --silent --show-error --header 'Metadata-Flavor: Google' \
    "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq python3.11 python3.11-venv
id albert >/dev/null 2>&1 || useradd --create-home albert

mkdir -p /opt/albert
gcloud storage cp "$(metadata albert-archive)" /tmp/albert.tar.gz
cd /opt/albert
# A module that the archive no longer has must not stay: Beam's workers compare all of the code.
rm -rf albert_core pipelines flows infra
tar -xzf /tmp/albert.tar.gz
# `git archive` notes its commit as the archive's comment; models that are made here name it.
commit=$(python3.11 -c 'import sys, tarfile; print(tarfile.open(sys.argv[1]).pax_headers.get("comment", ""))' \
  /tmp/albert.tar.gz)

# infra/tpu pins torch 2.9.1 and PyTorch/XLA; requirements.lock has everything else.
test -x .venv/bin/python || python3.11 -m venv .venv
.venv/bin/python infra/install.py --torch none --no-project train flows pipelines gcs
.venv/bin/pip install --quiet -c infra/tpu/constraints.txt --no-build-isolation -e '.[tpu]'

install -d -m 700 /etc/albert
(umask 077
  metadata albert-settings > /etc/albert/worker.env
  printf '\nPJRT_DEVICE=TPU\nALBERT_COMMIT=%s\n' "$commit" >> /etc/albert/worker.env)
install -m 644 infra/hosts/albert-worker.service /etc/systemd/system/
systemctl daemon-reload
systemctl enable albert-worker
systemctl restart albert-worker
