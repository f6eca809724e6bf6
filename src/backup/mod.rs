//! EtcdBackups: each becomes a Job that takes one snapshot, and shows what came of it; one that is deleted may take the
//! backup with it, by another Job. The operator sees neither the data nor the store's credentials: only the Jobs do.

pub mod controller;
mod decide;
mod delete;
mod job;
mod let_go;
mod progress;
mod status;

#[cfg(test)]
mod controller_tests;
#[cfg(test)]
mod delete_tests;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod let_go_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod words_tests;
