//! Azure as azurite serves it from a folder.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use tempfile::TempDir;

use crate::clouds::azure::Account;
use crate::ports::free_address;
use crate::stores::certificates::Authority;
use crate::stores::place::Place;
use crate::stores::{Flaw, Process, Server, program};

const CONTAINER: &str = "backups";
const ACCOUNT: &str = "quorate";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

pub struct Azurite {
    address: SocketAddr,
    account: Account,
    scheme: &'static str,
    _process: Process,
    _folder: TempDir,
}

impl Azurite {
    /// With an empty container.
    pub fn start() -> Option<Self> {
        Self::begin(None)
    }

    /// It speaks TLS, with a certificate that this authority has signed, and takes tokens of Entra's: those that are meant for a
    /// store and whose time it is. Whose they are it does not ask, nor who has signed them.
    pub fn over_tls(authority: &Authority) -> Option<Self> {
        Self::begin(Some(authority))
    }

    fn begin(authority: Option<&Authority>) -> Option<Self> {
        let program = program("azurite", "azurite-blob", "QUORATE_AZURITE")?;
        let folder = tempfile::tempdir().unwrap();
        let address = free_address();
        let account = Account::new(ACCOUNT);
        let mut command = Command::new(program);
        command
            .args(["--blobHost", &address.ip().to_string(), "--blobPort", &address.port().to_string()])
            .args(["--silent", "--disableTelemetry", "--location"])
            .arg(folder.path())
            .env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{}", account.key()));
        if let Some(authority) = authority {
            let leaf = authority.signs(Ipv4Addr::LOCALHOST);
            let [certificate, key] = [CERTIFICATE, KEY].map(|name| folder.path().join(name));
            fs::write(&certificate, leaf.certificate).unwrap();
            fs::write(&key, leaf.key).unwrap();
            command.arg("--cert").arg(certificate).arg("--key").arg(key).args(["--oauth", "basic"]);
        }
        let process = Process::start(&mut command, address);
        let scheme = if let Some(authority) = authority {
            account.create_container_over_tls(address, &authority.certificate(), CONTAINER);
            "https"
        } else {
            account.create_container(address, CONTAINER);
            "http"
        };
        Some(Self { address, account, scheme, _process: process, _folder: folder })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A token for its container with these permissions.
    pub fn token(&self, permissions: &str) -> String {
        self.account.token(CONTAINER, permissions)
    }

    /// A place of which no more is said than where it is.
    pub fn bare(&self, prefix: &str) -> Place {
        self.place(ACCOUNT, CONTAINER, prefix)
    }

    /// A place that is reached by way of somebody who listens there.
    pub fn behind(&self, gate: SocketAddr, prefix: &str) -> Place {
        self.at(gate, ACCOUNT, CONTAINER, prefix).with_credentials(&[("account-key", &self.account.key())])
    }

    /// The same, reached with a token instead of the account's key.
    pub fn with_token(&self) -> WithToken<'_> {
        WithToken(self)
    }

    fn place(&self, account: &str, container: &str, prefix: &str) -> Place {
        self.at(self.address, account, container, prefix)
    }

    /// azurite takes the account's name from the path, which Azure has in the name of the host.
    fn at(&self, server: SocketAddr, account: &str, container: &str, prefix: &str) -> Place {
        Place::at(format!("azure://{account}/{container}/{prefix}"))
            .with_option("endpoint", &format!("{}://{server}/{account}", self.scheme))
    }
}

impl Server for Azurite {
    fn place(&self, prefix: &str) -> Place {
        self.place(ACCOUNT, CONTAINER, prefix).with_credentials(&[("account-key", &self.account.key())])
    }

    fn flawed(&self, prefix: &str, flaw: Flaw) -> Option<Place> {
        let key = self.account.key();
        Some(match flaw {
            Flaw::WrongKey => {
                let key = Account::new(ACCOUNT).key();
                self.place(ACCOUNT, CONTAINER, prefix).with_credentials(&[("account-key", &key)])
            }
            Flaw::WrongAccount => self.place("nobody", CONTAINER, prefix).with_credentials(&[("account-key", &key)]),
            Flaw::NoBucket => self.place(ACCOUNT, "missing", prefix).with_credentials(&[("account-key", &key)]),
            Flaw::ReadOnly => {
                let token = self.token("rl");
                self.place(ACCOUNT, CONTAINER, prefix).with_credentials(&[("sas-token", &token)])
            }
        })
    }

    fn parts_left(&self) -> Option<usize> {
        // There is no way to take them back: Azure drops them by itself after a week.
        None
    }
}

/// A container as somebody has it who was given no more than a token for it.
pub struct WithToken<'a>(&'a Azurite);

impl Server for WithToken<'_> {
    fn place(&self, prefix: &str) -> Place {
        let token = self.0.token("racwdl");
        self.0.place(ACCOUNT, CONTAINER, &format!("token/{prefix}")).with_credentials(&[("sas-token", &token)])
    }

    fn flawed(&self, _: &str, _: Flaw) -> Option<Place> {
        None
    }

    fn parts_left(&self) -> Option<usize> {
        self.0.parts_left()
    }
}
