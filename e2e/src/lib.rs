//! A real cluster, scenarios, faults and benchmarks for Quorate.

pub mod authority;
pub mod bench;
pub mod chaos;
pub mod cli;
pub mod command;
pub mod compiler;
pub mod debian;
pub mod demo;
pub mod deploy;
pub mod digest;
pub mod faults;
pub mod images;
pub mod lab;
mod lock;
pub mod progress;
pub mod provider;
pub mod provisioner;
pub mod rbac;
pub mod scene;
pub mod tools;
pub mod workspace;
