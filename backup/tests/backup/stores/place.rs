//! How one place in a store is reached: as the agent is told on its command line, and as its library takes it.

use std::collections::BTreeMap;
use std::fs;

use quorate_backup::keys::KeyFiles;
use quorate_backup::store::{Address, CredentialsFolder, Settings, Store};
use tempfile::TempDir;

use crate::agent::{Ended, run};

/// A place, and its credentials as a mounted Secret has them.
pub struct Place {
    address: String,
    options: BTreeMap<String, String>,
    credentials: Option<TempDir>,
}

impl Place {
    /// One that needs no more than its address.
    pub fn at(address: String) -> Self {
        Self { address, options: BTreeMap::new(), credentials: None }
    }

    pub fn with_option(mut self, name: &str, value: &str) -> Self {
        self.options.insert(name.to_owned(), value.to_owned());
        self
    }

    /// With a file for each value.
    pub fn with_credentials(mut self, files: &[(&str, &str)]) -> Self {
        self.credentials = Some(tempfile::tempdir().unwrap());
        for (name, value) in files {
            self.renew(name, value);
        }
        self
    }

    /// Writes one of the values anew, as when the Secret is changed.
    pub fn renew(&self, name: &str, value: &str) {
        fs::write(self.credentials.as_ref().unwrap().path().join(name), value).unwrap();
    }

    pub fn address(&self) -> Address {
        self.address.parse().unwrap()
    }

    pub fn open(&self) -> Store {
        let credentials = self.credentials.as_ref().map(|folder| CredentialsFolder(folder.path().to_owned()));
        Store::open(&Settings {
            address: self.address(),
            options: self.options.clone(),
            credentials,
            ca: None,
            keys: KeyFiles::default(),
        })
        .unwrap()
    }

    /// The agent's arguments that say so.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["--store".to_owned(), self.address.clone()];
        for (name, value) in &self.options {
            arguments.extend(["--store-option".to_owned(), format!("{name}={value}")]);
        }
        if let Some(folder) = &self.credentials {
            arguments.extend(["--store-credentials".to_owned(), folder.path().to_str().unwrap().to_owned()]);
        }
        arguments
    }

    /// Runs a command of the agent on it.
    pub fn run(&self, command: &str, more: &[&str]) -> Ended {
        let store = self.arguments();
        let store = store.iter().map(String::as_str);
        run(&[command, "--output", "json"].into_iter().chain(store).chain(more.iter().copied()).collect::<Vec<_>>())
    }
}
