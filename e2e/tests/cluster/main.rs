//! What Quorate promises, shown on a real cluster. Started by `quorate-e2e test`, which brings that cluster up; a test
//! marked as ignored belongs to `make e2e` only.

#![expect(
    clippy::large_futures,
    reason = "a scene is one future with all that it holds; there are few, and they live long"
)]

mod alarm;
mod archive;
mod archive_load;
mod azurite;
mod backup;
mod backup_killed;
mod birth;
mod chaos;
#[path = "../../../backup/tests/clouds/mod.rs"]
#[expect(
    dead_code,
    clippy::unwrap_used,
    reason = "not all of it is needed here; a test fails by panicking, in its helpers too"
)]
mod clouds;
mod crash;
mod create;
mod encrypt;
mod forked;
mod identity;
mod kill;
mod kubeconfig;
mod lab;
mod lose;
mod mirror;
mod node;
mod operator;
mod outage;
mod past;
mod renewal;
mod rest;
mod restore;
mod retention;
mod roll;
mod spec;
mod stores;
mod ticket;
mod tls;
mod tls_rotation;
mod troubles;
mod upgrade;
mod upgrade_back;
mod upgrade_crashes;
mod upgrade_flags;
mod upgrade_floor;
mod upgrade_killed;
mod upgrade_lost;
mod upgrade_seen;
mod upgrade_sizes;
mod upgrade_trial;
mod verify;
mod write;
