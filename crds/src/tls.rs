//! How connections to members and between them are encrypted. Certificates are issued and checked elsewhere.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::LocalSecret;
use crate::schema::rules_at;

/// How connections to members and between them are encrypted, and who provides the certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules_at("spec.tls"))]
pub struct Tls {
    /// `Issued`: Quorate issues the certificates and renews them. `Secrets`: they are in Secrets of yours. `Disabled`:
    /// everything is in plain text. It can't be changed later.
    pub mode: TlsMode,
    /// For how many minutes a certificate that Quorate issues is valid. It is renewed, without a restart, when half of
    /// that time is over. The default is 90 days.
    pub lifetime_minutes: i32,
    /// Further DNS names and IP addresses under which clients reach the members, e.g. those of a load balancer. They are
    /// added to the certificates of the client port, without a restart; what is removed here leaves them at the next
    /// renewal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub extra_names: Vec<String>,
    /// The Secrets that hold the certificates, with `mode: Secrets`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secrets: Option<TlsSecrets>,
}

impl Default for Tls {
    fn default() -> Self {
        Self { mode: TlsMode::default(), lifetime_minutes: 90 * 24 * 60, extra_names: Vec::new(), secrets: None }
    }
}

/// Who provides the certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TlsMode {
    /// Quorate issues them and renews them.
    #[default]
    Issued,
    /// They are in Secrets of the user's.
    Secrets,
    /// Nobody: everything is in plain text.
    Disabled,
}

impl TlsMode {
    /// Whether connections are encrypted.
    pub const fn encrypts(self) -> bool {
        match self {
            Self::Issued | Self::Secrets => true,
            Self::Disabled => false,
        }
    }
}

/// Secrets of the cluster's namespace. Each holds a certificate with its intermediates (`tls.crt`), its key (`tls.key`)
/// and the authorities that are trusted (`ca.crt`), as cert-manager writes them. All members share them, so their names
/// have to cover every member that there will ever be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TlsSecrets {
    /// What members show each other, as servers and as clients. Its names must be `*.<name>.<namespace>.svc` and the same
    /// with the cluster's domain; its `ca.crt` is trusted between members.
    pub peer: LocalSecret,
    /// What members show their clients. Its names must be `*.<name>.<namespace>.svc` and
    /// `<name>-client.<namespace>.svc`; its `ca.crt` is trusted to have signed clients.
    pub server: LocalSecret,
    /// What Quorate, and etcdctl in the pods, show the members. Its `ca.crt` is trusted to have signed the members'.
    pub client: LocalSecret,
}
