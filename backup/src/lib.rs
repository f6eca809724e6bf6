//! What runs beside each etcd member: the launcher that decides whether etcd may start on this volume, the types by which
//! the operator speaks with it, and backups: taken, kept, proved and restored. It never talks to Kubernetes and never
//! decides membership.

pub mod archive;
pub mod bolt;
pub mod care;
pub mod format;
pub mod install;
pub mod keys;
pub mod launch;
pub mod restore;
pub mod seed;
pub mod serve;
pub mod snapshot;
pub mod source;
pub mod store;
pub mod ticket;
pub mod ticket_push;
pub mod wal;
