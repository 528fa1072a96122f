#!/bin/sh
# The tunables that packetdrill's public tests start from, for collections of scripts that have no
# defaults.sh of their own.
exec sysctl -q \
  net.ipv4.tcp_rmem='4096 540000 15728640' \
  net.ipv4.tcp_wmem='4096 262144 4194304' \
  net.ipv4.tcp_congestion_control=cubic \
  net.ipv4.tcp_dsack=1 \
  net.ipv4.tcp_early_retrans=4 \
  net.ipv4.tcp_ecn=0 \
  net.ipv4.tcp_fastopen=0x3 \
  net.ipv4.tcp_fastopen_key=a1a1a1a1-b2b2b2b2-c3c3c3c3-d4d4d4d4 \
  net.ipv4.tcp_frto=2 \
  net.ipv4.tcp_notsent_lowat=4294967295 \
  net.ipv4.tcp_pacing_ca_ratio=120 \
  net.ipv4.tcp_pacing_ss_ratio=200 \
  net.ipv4.tcp_recovery=1 \
  net.ipv4.tcp_reordering=3 \
  net.ipv4.tcp_sack=1 \
  net.ipv4.tcp_slow_start_after_idle=0 \
  net.ipv4.tcp_synack_retries=5 \
  net.ipv4.tcp_syncookies=1 \
  net.ipv4.tcp_syn_retries=5 \
  net.ipv4.tcp_timestamps=1 \
  net.ipv4.tcp_tso_win_divisor=3
