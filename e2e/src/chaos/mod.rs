//! Chaos: a cluster under load and random faults, everything recorded, and checks that judge the record afterwards. A run
//! is told by its schedule, which is a pure function of its seed.

pub mod back_off;
pub mod book;
pub mod check;
pub mod clients;
pub mod clock;
pub mod cuts;
pub mod fault;
pub mod gaps;
pub mod history;
pub mod inject;
pub mod keys;
pub mod leadership;
pub mod load;
pub mod looks;
pub mod operator_log;
pub mod report;
pub mod run;
pub mod schedule;
pub mod session;
pub mod shrink;
pub mod stalls;
pub mod standings;
pub mod summary;
pub mod versions;
pub mod watchers;
