#!/bin/sh
# EpilogSlurmctld: record a job that ended, for `presage slurm watch` to report. A site with an
# EpilogSlurmctld of its own calls this file from it. It never fails, so no job is affected.
export SLURM_CONF="${SLURM_CONF:-@CONF@}" SLURM_TIME_FORMAT=%s
folder=@STATE@/ended
record=$(squeue --noheader --states=all --jobs="$SLURM_JOB_ID" @FORMAT@ 2>/dev/null)
case $record in
  *presage:*) ;;
  *) exit 0 ;;
esac
umask 077
partial=$folder/.$SLURM_JOB_ID.$$
printf '%s\n' "$record" >"$partial" 2>/dev/null &&
  mv "$partial" "$folder/$SLURM_JOB_ID.${SLURM_JOB_RESTART_COUNT:-0}.$$" 2>/dev/null
exit 0
