//! The operator: it watches EtcdClusters, observes their members, asks the state machine what to do, and does it.

pub mod api;
mod backup;
pub mod cli;
mod cluster;
mod definitions;
mod events;
pub mod lease;
pub mod lists;
pub mod metrics;
pub mod operator;
pub mod serve;
pub mod telemetry;
pub mod writes;
