//! Chaos: a cluster under load and random faults, everything recorded, and checks that judge the record afterwards. A run
//! is told by its schedule, which is a pure function of its seed.

pub mod check;
pub mod clock;
pub mod fault;
pub mod history;
pub mod keys;
pub mod operator_log;
pub mod schedule;
pub mod shrink;
