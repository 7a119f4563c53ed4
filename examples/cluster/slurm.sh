#!/bin/bash
# Four nodes of eight GPUs: a Ray cluster for the time of one job, then an evaluation on it. `sbatch examples/cluster/slurm.sh`
#SBATCH --job-name=unmask
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00
set -euo pipefail
source .venv/bin/activate # a clone on a file system that all nodes share, after `make setup`

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}'):6379
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(openssl rand -hex 32) # only this job's processes join

srun --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --node-ip-address="${address%:*}" --port=6379 --num-gpus=8 --num-cpus=32 --block &
sleep 15
srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" \
    ray start --address="$address" --num-gpus=8 --num-cpus=32 --block &
sleep 15

# A job that runs out of time is resumed by submitting it again: finished items stay in the run's folder.
srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
    unmask eval recipes/main.yaml --backend ray --address "$address" --out runs/main
