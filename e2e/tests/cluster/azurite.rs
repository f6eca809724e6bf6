//! A store that speaks Azure's protocol, for scenes: azurite, where the cluster's pods reach it. It keeps one container.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use quorate_e2e::command::Command;
use quorate_e2e::progress::Progress;
use quorate_e2e::scene::Server;
use quorate_e2e::tools::{self, Tool};
use serde_json::{Value, json};

use crate::clouds::azure::Account;

const ACCOUNT: &str = "quorate";
const CONTAINER: &str = "backups";

/// A running store, ended when it is dropped.
pub struct Azurite {
    server: Server,
    account: Account,
}

impl Azurite {
    /// One with an empty container.
    pub async fn start() -> Result<Self> {
        let program = tools::build(Tool::Azurite, &Progress::new()).await?.program("azurite-blob");
        let account = Account::new(ACCOUNT);
        let server = Server::start(|port, folder| {
            Ok(Command::new(program)
                .args(["--blobHost", "0.0.0.0", "--blobPort", &port.to_string()])
                .args(["--silent", "--disableTelemetry", "--location"])
                .arg(folder)
                .env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{}", account.key())))
        })
        .await?;
        account.create_container(SocketAddr::from((Ipv4Addr::LOCALHOST, server.port())), CONTAINER);
        Ok(Self { server, account })
    }

    /// The store as a spec describes it, with credentials out of this Secret. azurite takes the account's name from the path,
    /// which Azure has in the name of the host.
    pub fn store(&self, secret: &str) -> Value {
        json!({
            "address": format!("azure://{ACCOUNT}/{CONTAINER}/etcd"),
            "options": { "endpoint": format!("{}/{ACCOUNT}", self.server.url()) },
            "credentials": { "name": secret },
        })
    }

    /// What the Secret has to hold.
    pub fn credentials(&self) -> Value {
        json!({ "account-key": self.account.key() })
    }
}
