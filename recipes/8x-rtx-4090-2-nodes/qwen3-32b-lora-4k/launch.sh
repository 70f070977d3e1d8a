#!/usr/bin/env bash
# FSDP2 hybrid shard on kentino-8x-rtx-4090: 16 processes on 2 node(s).
#
#   ./launch.sh                        train
#   ./launch.sh --resume               go on from the newest checkpoint
#   ./launch.sh --resume=CHECKPOINT    go on from that folder
#   ./launch.sh --prepare              download and tokenize only, without a GPU
#
# Anything after -- goes to the trainer. Variables that you set yourself win over those set here.
# On every node: MASTER_ADDR=<address of node 0> NODE_RANK=<0, 1, ...> ./launch.sh
# shellcheck disable=SC2016  # names and paths stand in single quotes: they are words, not code
set -euo pipefail

usage() { sed -n '2,/^# shellcheck/{/^# shellcheck/d;/^#/s/^# \{0,1\}//p;}' "./${BASH_SOURCE[0]##*/}"; }
fail() {
  printf 'launch.sh: %s\n' "$*" >&2
  exit 2
}

here=${BASH_SOURCE[0]%/*}
[[ $here == "${BASH_SOURCE[0]}" ]] && here=.
CDPATH='' cd -- "$here"

resume=''
prepare_only=''
while (($#)); do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --resume) resume=--auto_resume_from_checkpoints=True ;;
    --resume=?*) resume=--resume_from_checkpoint=${1#--resume=} ;;
    --prepare) prepare_only=1 ;;
    --) shift && break ;;
    *) fail "unknown option: $1 (see ./launch.sh --help)" ;;
  esac
  shift
done

# Set a variable unless the caller has; export it either way.
default() { export "$1=${!1-$2}"; }

# no telemetry
default HF_HUB_DISABLE_TELEMETRY 1
# no telemetry
default DO_NOT_TRACK 1
# Axolotl sends the configuration out otherwise, and hangs at exit offline
default AXOLOTL_DO_NOT_TRACK 1
# tokenizer threads and forked data loaders deadlock
default TOKENIZERS_PARALLELISM false
# less fragmentation of GPU memory
default PYTORCH_ALLOC_CONF expandable_segments:True
# a broken link says so instead of hanging until the watchdog; INFO on a first run also names the
# path it chose
default NCCL_DEBUG WARN
# CPU threads per process; unset means 1
default OMP_NUM_THREADS 8
# the vendor's driver offers no peer-to-peer on this GPU; a driver that claims it with the IOMMU on
# returns wrong data
default NCCL_P2P_DISABLE 1
# set NCCL_SOCKET_IFNAME to the interface the nodes share, exact with a leading =, for example
# =enp1s0f0; unset, NCCL may choose docker0
# set GLOO_SOCKET_IFNAME to the same interface, without =, for the CPU process group that offload
# and full state dicts use
# accelerate turns RDMA off for some GPUs on drivers older than 550.40 unless this is set
default NCCL_IB_DISABLE 0
# set NCCL_IB_HCA to the adapter, exact with a leading =, for example =mlx5_0; without = mlx5_1 also
# takes mlx5_10
# two flows per connection, so that bonds and ECMP do not hash everything onto one link
default NCCL_IB_QPS_PER_CONNECTION 2

for tool in accelerate python; do
  command -v "$tool" >/dev/null || fail "$tool is not on PATH; activate the environment made from requirements.txt"
done
[[ -e .recipegen-commit ]] && fail 'an interrupted recipegen left this folder half written; run recipegen again first'
: "${MASTER_ADDR:?launch.sh: set MASTER_ADDR to the address of node 0, the same on every node}"
: "${NODE_RANK:?launch.sh: set NODE_RANK to 0 on the first node, 1 on the second, and so on}"

# --- Download and tokenize once per node, in one process, before the GPUs start.
mkdir -p ./prepared
exec 9>./prepared/.lock
if command -v flock >/dev/null; then flock 9; fi # nodes may share this folder

model=Qwen/Qwen3-32B
if [[ ! -d $model && ${HF_HUB_OFFLINE:-0} != 1 ]]; then
  command -v hf >/dev/null || fail 'hf is not on PATH; it comes with huggingface_hub'
  hf download "$model" \
    --exclude 'original/*' --exclude '*.pth' --exclude '*.gguf' >/dev/null ||
    fail "cannot download $model; if it is gated, accept its licence on its page and run: hf auth login"
fi

# Tokenized again when the recipe or a data file has changed.
stamp=$(
  cksum axolotl.yaml
)
if [[ ! -f ./prepared/.stamp || $(<./prepared/.stamp) != "$stamp" ]]; then
  CUDA_VISIBLE_DEVICES='' python -m axolotl.cli.preprocess axolotl.yaml --download=False
  printf '%s\n' "$stamp" >./prepared/.stamp
fi
exec 9>&-
[[ -n $prepare_only ]] && exit 0

# --- Train. Everything is on this machine now; the ranks need not ask the Hub.
default HF_HUB_OFFLINE 1

checkpoints=(./outputs/checkpoint-*/)
if [[ -z $resume && -d ${checkpoints[0]} ]]; then
  fail "./outputs holds checkpoints of an earlier run: use --resume, or move that folder away"
fi
if [[ $resume == --auto_resume_from_checkpoints=True && ! -d ${checkpoints[0]} && ${NODE_RANK:-0} == 0 ]]; then
  fail "there is no checkpoint in ./outputs to resume from"
fi

arguments=(-m axolotl.cli.train axolotl.yaml)
[[ -n $resume ]] && arguments+=("$resume")

exec accelerate launch --config_file accelerate.yaml \
  --machine_rank "${NODE_RANK:-0}" \
  --main_process_ip "${MASTER_ADDR:-127.0.0.1}" \
  --main_process_port "${MASTER_PORT:-29500}" \
  "${arguments[@]}" "$@"
