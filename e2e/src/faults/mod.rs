//! What can go wrong, as calls: processes, pods, claims, volumes and the operator. Each does exactly the damage that its
//! name says and repairs nothing; nodes, network and API server are the local cluster's own (`lab`).

pub mod cuts;
pub mod nodes;
pub mod operator;
pub mod pods;
pub mod processes;
pub mod wal;
