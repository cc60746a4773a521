#!/bin/bash
# One party's workers under SLURM: as many tasks as team.workers in run.yaml. Submit it again to go on.
#SBATCH --job-name=shop
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=2
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
set -eu
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT
srun bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS exec splitvfl party run.yaml --as shop --out runs/shop'
