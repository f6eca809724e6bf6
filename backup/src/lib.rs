//! The agent that runs beside each etcd member.
