//! Arguments that several commands have.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use quorate_backup::keys::KeyFiles;
use quorate_backup::serve::{Lock, Port};
use quorate_backup::source::{Access, Credentials, Tls};
use quorate_backup::store::{Address, CredentialsFolder, Settings, Store, StoreError};

/// Where backups are kept.
#[derive(Debug, Args)]
#[command(next_help_heading = "Store")]
pub struct StoreArguments {
    /// s3://bucket/prefix, gs://bucket/prefix, azure://account/container/prefix or file:///folder
    #[arg(long, value_name = "ADDRESS", env = "QUORATE_STORE")]
    store: Address,
    /// An option of the store: endpoint, region, addressing (path, virtual-hosted), payload (signed, unsigned), kms-key
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair, env = "QUORATE_STORE_OPTIONS", value_delimiter = ',')]
    store_option: Vec<(String, String)>,
    /// A folder with one file for each value, as a mounted Secret; without it ambient credentials apply.
    /// S3: access-key-id, secret-access-key, session-token. Google: service-account.json. Azure: account-key; or
    /// sas-token; or tenant-id, client-id, client-secret. Each also ca.crt
    #[arg(long, value_name = "FOLDER", env = "QUORATE_STORE_CREDENTIALS")]
    store_credentials: Option<PathBuf>,
    /// Authorities to trust beside the system's, in PEM
    #[arg(long, value_name = "FILE", env = "QUORATE_STORE_CA")]
    store_ca: Option<PathBuf>,
}

impl StoreArguments {
    /// Opens it, with these keys.
    pub fn open(&self, keys: impl Into<KeyFiles>) -> Result<Store, StoreError> {
        Store::open(&self.settings(keys))
    }

    /// How it is reached, with these keys.
    pub fn settings(&self, keys: impl Into<KeyFiles>) -> Settings {
        let Self { store, store_option, store_credentials, store_ca } = self;
        Settings {
            address: store.clone(),
            options: store_option.iter().cloned().collect(),
            credentials: store_credentials.clone().map(CredentialsFolder),
            ca: store_ca.clone(),
            keys: keys.into(),
        }
    }
}

/// To whom is encrypted what is written.
#[derive(Debug, Args)]
#[command(next_help_heading = "Encryption")]
pub struct RecipientsArgument {
    /// Encrypt what is written to the public keys in this file: of age, one a line, as `age-keygen -y` shows them (age1...).
    /// The private keys are not needed here. Without it nothing is encrypted; if it can't be read, nothing is written
    #[arg(long, value_name = "FILE", env = "QUORATE_RECIPIENTS_FILE")]
    recipients_file: Option<PathBuf>,
}

impl From<RecipientsArgument> for KeyFiles {
    fn from(RecipientsArgument { recipients_file }: RecipientsArgument) -> Self {
        Self { recipients: recipients_file, identity: None }
    }
}

/// Who reads what is encrypted.
#[derive(Debug, Args)]
#[command(next_help_heading = "Encryption")]
pub struct IdentityArgument {
    /// The file with the private key that reads an encrypted backup, as age-keygen writes it (AGE-SECRET-KEY-1...). There may
    /// be several keys in it, one a line: those of before a change of keys, too. `list` shows to whom a backup is encrypted
    #[arg(long, value_name = "FILE", env = "QUORATE_IDENTITY_FILE")]
    identity_file: Option<PathBuf>,
}

impl From<IdentityArgument> for KeyFiles {
    fn from(IdentityArgument { identity_file }: IdentityArgument) -> Self {
        Self { recipients: None, identity: identity_file }
    }
}

/// The etcd member that is read, or several to choose from.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "etcd")]
pub struct SourceArguments {
    /// The client URL of the member to read. Of several, separated by commas, a snapshot takes one that is up to date and
    /// rather not the leader; an archive takes the first
    #[arg(
        long,
        value_name = "URL",
        env = "QUORATE_ENDPOINT",
        default_value = "http://127.0.0.1:2379",
        value_delimiter = ','
    )]
    endpoint: Vec<String>,
    /// Whom to trust as etcd, in PEM
    #[arg(long, value_name = "FILE", env = "QUORATE_ETCD_CA")]
    etcd_ca: Option<PathBuf>,
    /// The own certificate, in PEM
    #[arg(long, value_name = "FILE", env = "QUORATE_ETCD_CERT", requires = "etcd_key")]
    etcd_cert: Option<PathBuf>,
    /// The key of the own certificate, in PEM
    #[arg(long, value_name = "FILE", env = "QUORATE_ETCD_KEY", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
    /// The user, if etcd asks for one; it needs the role root
    #[arg(long, value_name = "NAME", env = "QUORATE_ETCD_USER", requires = "etcd_password_file")]
    etcd_user: Option<String>,
    /// The file that holds the user's password
    #[arg(long, value_name = "FILE", env = "QUORATE_ETCD_PASSWORD_FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,
}

impl SourceArguments {
    /// How to reach each of them.
    pub fn members(&self) -> Vec<Access> {
        let Self { endpoint, etcd_ca, etcd_cert, etcd_key, etcd_user, etcd_password_file } = self.clone();
        let tls = Tls { ca: etcd_ca, identity: etcd_cert.zip(etcd_key) };
        let user = etcd_user.zip(etcd_password_file).map(|(name, password)| Credentials { name, password });
        let access = |endpoint| Access { endpoint, tls: tls.clone(), user: user.clone() };
        endpoint.into_iter().map(access).collect()
    }
}

/// Where questions are answered, and whose.
#[derive(Debug, Args)]
#[command(next_help_heading = "Port")]
pub struct ListenArguments {
    /// Where to say how it goes, at the paths that are named above; [::] also serves IPv4. In plain HTTP, unless there is a
    /// certificate
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// A certificate for that port, in PEM: it then speaks TLS, and answers only callers who show one, too. The three files
    /// are read anew for each caller
    #[arg(long, value_name = "FILE", requires_all = ["listen", "listen_key", "listen_client_ca"])]
    listen_cert: Option<PathBuf>,
    /// The key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "listen_cert")]
    listen_key: Option<PathBuf>,
    /// The authorities that may have signed what callers show, in PEM
    #[arg(long, value_name = "FILE", requires = "listen_cert")]
    listen_client_ca: Option<PathBuf>,
}

impl ListenArguments {
    /// The port, if there is to be one.
    pub fn port(self) -> Option<Port> {
        let Self { listen, listen_cert, listen_key, listen_client_ca } = self;
        let lock = listen_cert.zip(listen_key).zip(listen_client_ca);
        let lock = lock.map(|((certificate, key), callers)| Lock::new(certificate, key, callers));
        listen.map(|address| Port { address, lock })
    }
}

/// `NAME=VALUE`.
pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}
