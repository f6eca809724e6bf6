//! The operator: it watches EtcdClusters, observes their members, asks the state machine what to do, and does it.

pub mod api;
mod backup;
pub mod cli;
mod cluster;
mod definitions;
mod events;
#[cfg(test)]
mod fake_api;
mod guard;
mod jobs;
pub mod lease;
pub mod lists;
pub mod metrics;
pub mod operator;
mod ownership;
pub mod serve;
mod stop;
mod store_secrets;
pub mod telemetry;
pub mod writes;
