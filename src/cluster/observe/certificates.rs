//! Looks at the Secrets of a cluster's certificates when that is needed: when it never did, when somebody changed one, and
//! when something runs out. At rest it asks nothing. Nothing is issued or written here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::try_join;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use quorate_crds::{EtcdCluster, TlsMode, TlsSecrets, names};
use quorate_etcd::Access;
use quorate_statemachine::Serial;

use super::cache::Key;
use super::facts::SecretFacts;
use super::{Observer, key};
use crate::api::{Error, Kube};
use crate::cluster::pki::{Certificates, OwnSecrets, Terms, Wallet};
use crate::cluster::render;
use crate::ownership::is_owned;

/// How often the user's own Secrets are read. No watch shows them: they do not carry our label.
const OWN_INTERVAL: Duration = Duration::from_secs(20);

/// What is known of a cluster's certificates, and what it takes to speak with its members.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// How the certificates are.
    pub certificates: Certificates,
    /// How members are dialled. `None`: there is nothing to show them yet.
    pub access: Option<Access>,
}

impl Observer {
    /// Looks at a cluster's certificates; `members` have pods that use them.
    pub(super) async fn tls(
        &self,
        cluster: &EtcdCluster,
        members: &BTreeSet<Serial>,
        wallet: &Wallet,
    ) -> Result<Tls, Error> {
        let Some(rendered) = render::Cluster::of(cluster) else { return Ok(Tls::default()) };
        let terms = Terms { cluster: rendered, domain: &self.domain };
        let now = Timestamp::now();
        match (cluster.spec.tls.mode, &cluster.spec.tls.secrets) {
            (TlsMode::Disabled, _) => Ok(Tls { certificates: Certificates::Off, access: Some(Access::plaintext()) }),
            (TlsMode::Secrets, Some(named)) => self.own(named, &terms, wallet, wallet.own_is_due(OWN_INTERVAL)).await,
            (TlsMode::Issued, _) | (TlsMode::Secrets, None) => {
                if wallet.must_read(&self.own_watched(cluster), members, &terms, now) {
                    wallet.take(secrets(&self.kube, cluster).await?, members, &terms, now);
                }
                Ok(Tls { certificates: wallet.report(members, &terms, now), access: wallet.access() })
            }
        }
    }

    /// The same for a plan that weighs: the user's own Secrets are read again, as they may have come in the very change that is
    /// acted on.
    pub(super) async fn tls_anew(&self, cluster: &EtcdCluster, wallet: &Wallet, glanced: &Tls) -> Result<Tls, Error> {
        let Some(rendered) = render::Cluster::of(cluster) else { return Ok(Tls::default()) };
        let (TlsMode::Secrets, Some(named)) = (cluster.spec.tls.mode, &cluster.spec.tls.secrets) else {
            return Ok(glanced.clone());
        };
        self.own(named, &Terms { cluster: rendered, domain: &self.domain }, wallet, true).await
    }

    /// What is known of the user's own Secrets, which are read before if that is due.
    async fn own(&self, named: &TlsSecrets, terms: &Terms<'_>, wallet: &Wallet, is_due: bool) -> Result<Tls, Error> {
        if is_due {
            wallet.take_own(&self.own_secrets(terms.cluster.namespace, named).await?, named, terms, Timestamp::now());
        }
        Ok(Tls { certificates: wallet.own_report(), access: wallet.access() })
    }

    /// What the watch shows of this very object's Secrets.
    fn own_watched(&self, cluster: &EtcdCluster) -> BTreeMap<String, SecretFacts> {
        let mut watched = self.watched.secrets.of(&key(cluster));
        watched.retain(|_, secret| secret.owner.is_some() && secret.owner == cluster.uid());
        watched
    }

    async fn own_secrets(&self, namespace: &str, named: &TlsSecrets) -> Result<OwnSecrets, Error> {
        let read = |name: &str| {
            let name = name.to_owned();
            async move { self.kube.get::<Secret>(namespace, &name).await }
        };
        let (peer, (server, client)) =
            try_join(read(&named.peer.name), try_join(read(&named.server.name), read(&named.client.name))).await?;
        Ok(OwnSecrets { peer, server, client })
    }
}

/// The Secrets of this very object, by a quorum read.
pub async fn secrets(kube: &Kube, cluster: &EtcdCluster) -> Result<Vec<Secret>, Error> {
    let Key { namespace, name } = key(cluster);
    let mut secrets = kube.list::<Secret>(&namespace, &format!("{}={name}", names::LABEL_CLUSTER)).await?;
    secrets.retain(|secret| is_owned(secret, cluster));
    Ok(secrets)
}
