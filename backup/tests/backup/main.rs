//! Backups as users meet them: the real binary as a process, real etcd and its own tools, real files; and a member in this
//! process that fails as told.
//!
//! What needs real etcd runs for each version that the local cluster's tools have been built with, or for each folder (with
//! `etcd`, `etcdutl` and `etcdctl` of one version) that `QUORATE_ETCD_BIN` names, separated by `:`. What needs servers of
//! object stores takes the programs that `QUORATE_VERSITYGW` and `QUORATE_AZURITE` name, or those of the tools; bbolt's own
//! checks take that of `QUORATE_BBOLT`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod agent;
mod answerless_store;
mod archive_alone;
mod archive_anew;
mod archive_leases;
mod archive_pressure;
mod archive_rate;
mod archive_real;
mod archive_roles;
mod archive_rotation;
mod archive_spilled;
mod archive_users;
mod bolt_real;
mod broken_off;
mod care;
#[path = "../clouds/mod.rs"]
mod clouds;
mod database;
mod encrypted;
mod encrypted_real;
mod fake;
mod foreign_reader;
mod killed;
mod locked;
mod memory;
mod pair;
#[path = "../../../etcd/tests/ports/mod.rs"]
mod ports;
mod programs;
mod quota;
mod real;
mod recorded;
mod restore;
mod rewound;
mod seed;
mod snapshot;
mod snapshot_real;
mod stores;
mod terminal;
