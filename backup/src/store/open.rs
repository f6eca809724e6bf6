//! Opens a store: builds the client for its provider, and finds out at first use whether it keeps its word on create-only
//! puts.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::Certificate;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::{ClientOptions, ObjectStore};

use super::address::{Address, Provider};
use super::credentials::{self, CredentialsFolder, KeysInFolder, KeysOfRole};
use super::error::{Act, Failure, StoreError};
use super::options::{Addressing, Options, Payload};
use super::{Creation, Key, Store, retries};
use crate::keys::KeyFiles;

/// The object that says what the prefix is used for. It is written once and never again.
pub const FORMAT_KEY: &str = "quorate-backups.json";
const FORMAT: &str = "{\"format\":\"quorate-backups\",\"version\":1}\n";
/// Enough for this object and whatever a later version adds to it.
const FORMAT_LIMIT: u64 = 64 << 10;

/// How a store is reached.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where it is.
    pub address: Address,
    /// Options by name, as [`super::StoreOption`] lists them.
    pub options: BTreeMap<String, String>,
    /// Where its credentials are mounted; without it the ambient ones apply (web identity, instance role, environment).
    pub credentials: Option<CredentialsFolder>,
    /// A file of authorities to trust beside the system's, in PEM.
    pub ca: Option<PathBuf>,
    /// Where the keys of encrypted backups are. They are not read here.
    pub keys: KeyFiles,
}

/// What a process' environment may say about credentials. Nothing else is taken from there: the library would also take a
/// stray `TOKEN` or `ENDPOINT`.
const AMBIENT_S3: &[(&str, AmazonS3ConfigKey)] = &[
    ("AWS_ACCESS_KEY_ID", AmazonS3ConfigKey::AccessKeyId),
    ("AWS_SECRET_ACCESS_KEY", AmazonS3ConfigKey::SecretAccessKey),
    ("AWS_SESSION_TOKEN", AmazonS3ConfigKey::Token),
    ("AWS_REGION", AmazonS3ConfigKey::Region),
    ("AWS_DEFAULT_REGION", AmazonS3ConfigKey::DefaultRegion),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", AmazonS3ConfigKey::WebIdentityTokenFile),
    ("AWS_ROLE_ARN", AmazonS3ConfigKey::RoleArn),
    ("AWS_ROLE_SESSION_NAME", AmazonS3ConfigKey::RoleSessionName),
    ("AWS_ENDPOINT_URL_STS", AmazonS3ConfigKey::StsEndpoint),
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", AmazonS3ConfigKey::ContainerCredentialsRelativeUri),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", AmazonS3ConfigKey::ContainerCredentialsFullUri),
    ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", AmazonS3ConfigKey::ContainerAuthorizationTokenFile),
];
const AMBIENT_AZURE: &[(&str, AzureConfigKey)] = &[
    ("AZURE_CLIENT_ID", AzureConfigKey::ClientId),
    ("AZURE_TENANT_ID", AzureConfigKey::AuthorityId),
    ("AZURE_FEDERATED_TOKEN_FILE", AzureConfigKey::FederatedTokenFile),
    ("AZURE_AUTHORITY_HOST", AzureConfigKey::AuthorityHost),
];

impl Store {
    /// Opens a store for reading. Nothing is asked of it yet, so nothing about it is known yet either.
    pub fn open(settings: &Settings) -> Result<Self, StoreError> {
        let Settings { address, options, credentials, ca, keys } = settings;
        let options = Options::read(&address.provider, options)?;
        let values = match credentials {
            Some(folder) => folder.read(&address.provider)?,
            None => BTreeMap::new(),
        };
        let maker = Maker { options, folder: credentials.as_ref(), client: client(&values, ca.as_ref())?, values };
        let fault = |source| StoreError::Open { address: address.to_string(), source: Box::new(source) };
        let objects: Arc<dyn ObjectStore> = match &address.provider {
            Provider::S3 { bucket } => {
                let builder = maker.telling_role(maker.s3(bucket)?);
                Arc::new(builder.and_then(AmazonS3Builder::build).map_err(fault)?)
            }
            Provider::Gcs { bucket } => Arc::new(maker.gcs(bucket)?.build().map_err(fault)?),
            Provider::Azure { account, container } => {
                Arc::new(maker.azure(account, container)?.build().map_err(fault)?)
            }
            Provider::Volume { folder } => {
                let folder = LocalFileSystem::new_with_prefix(folder).map_err(fault)?;
                // Buckets have no empty folders: one that is left would look like a backup that has just begun.
                Arc::new(folder.with_fsync(true).with_automatic_cleanup(true))
            }
        };
        Ok(Self { objects, address: Arc::new(address.clone()), keys: Arc::new(keys.clone()) })
    }

    /// Wraps objects that are already open: for tests of faults.
    pub fn over(objects: Arc<dyn ObjectStore>, address: Address) -> Self {
        Self { objects, address: Arc::new(address), keys: Arc::default() }
    }

    /// The same with these keys.
    pub fn with_keys(self, keys: KeyFiles) -> Self {
        Self { keys: Arc::new(keys), ..self }
    }

    /// Makes the prefix ours, or finds that it is already. Call this before the first write: a store that overwrites what
    /// it was told only to create is refused here. In a bucket that locks each object the lock refuses the second put, and
    /// guards every manifest as well, for as long as it lasts.
    pub async fn prepare(&self) -> Result<(), StoreError> {
        let (key, format) = (Key::new(FORMAT_KEY), Bytes::from_static(FORMAT.as_bytes()));
        for attempt in 0..retries::TRIES {
            retries::before_try(attempt).await;
            // Twice: only a second one that is refused proves anything, whoever wrote the first.
            let first = self.create(&key, format.clone()).await?;
            if first == Creation::Created && self.create(&key, format.clone()).await? == Creation::Created {
                return Err(StoreError::Overwrites { address: self.address.to_string() });
            }
            // A put that meets another one on its way is refused as well (409), and then there may be none yet.
            if let Some(found) = self.format().await? {
                return self.expect_ours(&found);
            }
        }
        let failure = Failure { act: Act::Write, key: FORMAT_KEY.to_owned(), address: self.address.to_string() };
        let detail = "the store says that it exists, and does not show it".to_owned();
        Err(StoreError::Failed { failure: Box::new(failure), detail })
    }

    /// Finds out whether this prefix holds backups of this format. Call this before reading: it tells a wrong address
    /// from an empty store.
    pub async fn check(&self) -> Result<(), StoreError> {
        match self.format().await? {
            Some(found) => self.expect_ours(&found),
            None => Err(self.other_format("it is not there; no backup has been made to this address")),
        }
    }

    async fn format(&self) -> Result<Option<Bytes>, StoreError> {
        self.read(&Key::new(FORMAT_KEY), FORMAT_LIMIT).await
    }

    fn expect_ours(&self, found: &[u8]) -> Result<(), StoreError> {
        if found == FORMAT.as_bytes() {
            return Ok(());
        }
        Err(self.other_format(&String::from_utf8_lossy(&found[..found.len().min(200)])))
    }

    fn other_format(&self, detail: &str) -> StoreError {
        StoreError::OtherFormat { address: self.address.to_string(), detail: detail.to_owned() }
    }
}

/// The client's options: our timeouts, and whom to trust.
fn client(values: &BTreeMap<&'static str, String>, ca: Option<&PathBuf>) -> Result<ClientOptions, StoreError> {
    // Where there are none, as in an image with nothing but a program, the library could not even begin: plain HTTP needs
    // none, and the ones that are given may be enough.
    let has_none = rustls_native_certs::load_native_certs().certs.is_empty();
    let mut client = retries::client().with_no_system_certificates(has_none);
    let mounted = values.get(credentials::CA).map(|text| (credentials::CA.to_owned(), text.clone().into_bytes()));
    let given =
        ca.map(|path| fs::read(path).map(|pem| (path.display().to_string(), pem)).map_err(|source| (path, source)));
    let given = given
        .transpose()
        .map_err(|(path, source)| credentials::CredentialsError::Read { path: path.clone(), source })?;
    for (file, pem) in mounted.into_iter().chain(given) {
        let certificates = Certificate::from_pem_bundle(&pem)
            .map_err(|source| StoreError::Certificates { file: file.clone(), source: Box::new(source) })?;
        for certificate in certificates {
            client = client.with_root_certificate(certificate);
        }
    }
    Ok(client)
}

/// What the builders of all providers need.
struct Maker<'a> {
    options: Options,
    folder: Option<&'a CredentialsFolder>,
    values: BTreeMap<&'static str, String>,
    client: ClientOptions,
}

impl Maker<'_> {
    fn client(&self) -> ClientOptions {
        let plain = self.options.endpoint.as_ref().is_some_and(|endpoint| endpoint.scheme() == "http");
        self.client.clone().with_allow_http(plain)
    }

    fn s3(&self, bucket: &str) -> Result<AmazonS3Builder, StoreError> {
        let Options { endpoint, region, addressing, payload, kms_key } = &self.options;
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_client_options(self.client())
            .with_retry(retries::policy())
            .with_virtual_hosted_style_request(*addressing == Addressing::VirtualHosted)
            .with_unsigned_payload(*payload == Payload::Unsigned);
        for (variable, key) in AMBIENT_S3 {
            if let Ok(value) = std::env::var(variable) {
                builder = builder.with_config(*key, value);
            }
        }
        if let Some(folder) = self.folder {
            let keys = KeysInFolder(folder.clone());
            keys.load()?;
            builder = builder.with_credentials(Arc::new(keys));
        }
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint.as_str().trim_end_matches('/'));
        }
        if let Some(region) = region {
            builder = builder.with_region(region);
        }
        Ok(match kms_key {
            Some(key) => builder.with_sse_kms_encryption(key),
            None => builder,
        })
    }

    /// The same, with the role in what is said when a pod's token is not exchanged for keys of it.
    fn telling_role(&self, builder: AmazonS3Builder) -> object_store::Result<AmazonS3Builder> {
        let identity = [AmazonS3ConfigKey::WebIdentityTokenFile, AmazonS3ConfigKey::RoleArn];
        let [Some(_), Some(role)] = identity.map(|key| builder.get_config_value(&key)) else { return Ok(builder) };
        if self.folder.is_some() {
            return Ok(builder);
        }
        // Keys in the environment come before a token, and are always there: nothing is said of the role then.
        let exchange = Arc::clone(builder.clone().build()?.credentials());
        Ok(builder.with_credentials(Arc::new(KeysOfRole { exchange, role })))
    }

    fn gcs(&self, bucket: &str) -> Result<GoogleCloudStorageBuilder, StoreError> {
        let mut builder = GoogleCloudStorageBuilder::new()
            .with_bucket_name(bucket)
            .with_client_options(self.client())
            .with_retry(retries::policy());
        match (self.folder, self.values.get(credentials::SERVICE_ACCOUNT)) {
            (Some(folder), None) => return Err(folder.incomplete("the file service-account.json").into()),
            (Some(_), Some(key)) => builder = builder.with_service_account_key(key),
            (None, _) => {
                if let Ok(path) = std::env::var("GOOGLE_APPLICATION_CREDENTIALS") {
                    builder = builder.with_application_credentials(path);
                }
            }
        }
        if let Some(endpoint) = &self.options.endpoint {
            builder = builder.with_base_url(endpoint.as_str().trim_end_matches('/'));
        }
        Ok(builder)
    }

    fn azure(&self, account: &str, container: &str) -> Result<MicrosoftAzureBuilder, StoreError> {
        let mut builder = MicrosoftAzureBuilder::new()
            .with_account(account)
            .with_container_name(container)
            .with_client_options(self.client())
            .with_retry(retries::policy());
        let value = |name| self.values.get(name).cloned();
        match self.folder {
            Some(folder) => {
                let principal =
                    (value(credentials::TENANT_ID), value(credentials::CLIENT_ID), value(credentials::CLIENT_SECRET));
                builder = match (value(credentials::ACCOUNT_KEY), value(credentials::SAS_TOKEN), principal) {
                    (Some(key), None, (None, None, None)) => builder.with_access_key(key),
                    (None, Some(token), (None, None, None)) => builder.with_config(AzureConfigKey::SasKey, token),
                    (None, None, (Some(tenant), Some(client), Some(secret))) => {
                        builder.with_client_secret_authorization(client, secret, tenant)
                    }
                    _ => {
                        return Err(folder
                            .incomplete("one of: account-key; sas-token; tenant-id, client-id and client-secret")
                            .into());
                    }
                };
            }
            None => {
                for (variable, key) in AMBIENT_AZURE {
                    if let Ok(value) = std::env::var(variable) {
                        // Azure's webhook ends the authority's URL with a slash, and the library puts one behind it.
                        builder = builder.with_config(*key, value.trim_end_matches('/'));
                    }
                }
            }
        }
        Ok(match &self.options.endpoint {
            Some(endpoint) => builder.with_endpoint(endpoint.as_str().trim_end_matches('/').to_owned()),
            None => builder,
        })
    }
}
