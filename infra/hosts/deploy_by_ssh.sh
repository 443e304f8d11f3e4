#!/bin/sh
# Sets up or updates a Prefect worker on a host over ssh (Debian or Ubuntu, with NVIDIA's driver if it
# has GPUs). It copies the committed code. In the root of the repository:
#
#   cp infra/hosts/albert-worker.env.example worker.env     # then fill it in
#   sh infra/hosts/deploy_by_ssh.sh root@gpu1.example.org worker.env
#
# A training that runs there saves and stops, and is started again by the server's rules. Models that
# are made there name the commit.
set -eu
host=${1:?root@HOST}
settings=${2:?file with the host\'s settings}

# A module that the commit no longer has must not stay: Beam's workers compare all of the code.
git archive HEAD | ssh "$host" 'set -eu
  umask 022
  mkdir -p /opt/albert
  cd /opt/albert
  rm -rf albert_core pipelines flows infra
  tar -xmf -'
{ cat "$settings"; printf '\nALBERT_COMMIT=%s\n' "$(git rev-parse HEAD)"; } |
  ssh "$host" 'install -D -m 600 /dev/stdin /etc/albert/worker.env'
ssh "$host" 'set -eu
  umask 022
  id albert >/dev/null 2>&1 || useradd --create-home albert
  cd /opt/albert
  make --silent .venv/.ready PYTHON="$(command -v python3.13 || command -v python3.12 || command -v python3.11 || echo python3)"
  install -m 644 infra/hosts/albert-worker.service /etc/systemd/system/
  systemctl daemon-reload
  systemctl enable albert-worker
  systemctl restart albert-worker
  systemctl --no-pager --lines 5 status albert-worker'
