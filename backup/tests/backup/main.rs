//! Backups as users meet them: the real binary as a process, real etcd and its own tools, real files; and a member in this
//! process that fails as told.
//!
//! `QUORATE_ETCD_BIN` names folders (separated by `:`) that each hold `etcd`, `etcdutl` and `etcdctl` of one version. What
//! needs them runs for each, and for none if it is not set.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod agent;
mod bolt_real;
mod fake;
mod real;
mod snapshot;
mod snapshot_real;
