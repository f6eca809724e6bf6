//! EtcdBackups: each becomes a Job that takes one snapshot, and shows what came of it. The operator sees neither the data nor
//! the store's credentials: only the Job does.

pub mod controller;
mod decide;
mod job;
mod pods;
mod status;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
