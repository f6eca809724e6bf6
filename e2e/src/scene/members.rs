//! What etcd itself says of its members, asked by its own API: the judge of what the operator's status claims. It shares
//! no code with the operator.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};

use super::processes::host;

/// How long one call to a member may take. A loaded machine with three nodes on two cores answers in some 100 ms.
const CALL_DEADLINE: Duration = Duration::from_secs(2);
/// The same for calls that can't be made once more: a disk that stands still for seconds holds up each write.
const PATIENT_DEADLINE: Duration = Duration::from_secs(30);
/// The key that a linearizable read asks for; it need not exist.
const PROBE_KEY: &str = "quorate-e2e/probe";
/// etcd's client port.
const CLIENT_PORT: u16 = 2379;

/// What a client of one cluster shows, and whom it trusts: out of the Secret that applications mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Who may have signed what members show, as PEM.
    pub trusted: String,
    /// The certificate that is shown, as PEM.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// A way to one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Door {
    /// Its address.
    pub address: String,
    /// Its host name, which its certificate has to carry.
    pub host: String,
    /// What is shown; nothing in plain text.
    pub keys: Option<Arc<Keys>>,
}

/// One member as etcd lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// etcd's id.
    pub id: u64,
    /// The name that it published at its first start; empty until then.
    pub name: String,
    /// The first label of its host name: what it will be called, known as soon as it is added.
    pub host: String,
    /// It does not vote yet.
    pub learner: bool,
}

/// A linearizable member list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// etcd's cluster id.
    pub cluster: u64,
    /// The id of the leader.
    pub leader: u64,
    /// The members, by name (an unstarted one by its id).
    pub members: BTreeMap<String, Member>,
}

impl Membership {
    /// The name of the leader.
    pub fn leader(&self) -> Result<&str> {
        let leads = self.members.iter().find(|(_, member)| member.id == self.leader);
        leads.map(|(name, _)| name.as_str()).context("nobody in the member list leads")
    }

    /// The names of the voters.
    pub fn voters(&self) -> Vec<&str> {
        self.members.values().filter(|member| !member.learner).map(|member| member.name.as_str()).collect()
    }
}

/// A client of one member that does not stand still, with a deadline on each call.
pub async fn dial(door: &Door) -> Result<Client> {
    dial_within(door, CALL_DEADLINE).await
}

/// The same for calls that can't be made once more.
pub(super) async fn dial_patiently(door: &Door) -> Result<Client> {
    dial_within(door, PATIENT_DEADLINE).await
}

async fn dial_within(door: &Door, deadline: Duration) -> Result<Client> {
    let Door { address, host, keys } = door;
    let mut options = ConnectOptions::new().with_connect_timeout(CALL_DEADLINE).with_timeout(deadline);
    if let Some(keys) = keys {
        let Keys { trusted, certificate, key } = keys.as_ref();
        let tls = TlsOptions::new().domain_name(host).ca_certificate(Certificate::from_pem(trusted));
        options = options.with_tls(tls.identity(Identity::from_pem(certificate, key)));
    }
    let scheme = if keys.is_some() { "https" } else { "http" };
    let address = if address.contains(':') { format!("[{address}]") } else { address.clone() };
    let mut client =
        Client::connect([format!("{scheme}://{address}:{CLIENT_PORT}")], Some(options)).await.map_err(told)?;
    answers(deadline, Box::pin(client.status())).await?;
    Ok(client)
}

/// Demands some answer: also one that refuses, which the caller's own calls come upon. The client's own deadlines count to the
/// end of the TCP handshake, and from the end of the TLS handshake on. To a process that stands still the kernel makes the first,
/// and nobody ever makes the second.
async fn answers<T>(deadline: Duration, call: impl Future<Output = T>) -> Result<()> {
    let answer = tokio::time::timeout(deadline, call).await;
    answer.map(drop).map_err(|_| anyhow!("no answer within {} s", deadline.as_secs()))
}

/// Asks the members one after the other for the linearizable member list; the first answer counts.
pub async fn membership(doors: &BTreeMap<String, Door>) -> Result<Membership> {
    let mut last = anyhow!("no member has an address");
    for (name, door) in doors {
        match ask(door).await {
            Ok(membership) => return Ok(membership),
            Err(error) => last = error.context(format!("{name} at {}", door.address)),
        }
    }
    Err(last)
}

/// The linearizable member list from one member. A linearizable read first makes the member apply all that was
/// committed, membership changes too; its own list read after that is at least as new.
async fn ask(door: &Door) -> Result<Membership> {
    let mut client = dial(door).await?;
    client.get(PROBE_KEY, None).await.map_err(told)?;
    // Who leads first: a leader that is still listed after another one led was not just removed.
    let status = client.status().await.map_err(told)?;
    let list = client.member_list().await.map_err(told)?;
    let cluster = list.header().map(etcd_client::ResponseHeader::cluster_id).context("an answer without a header")?;
    let members = list.members().iter().map(|member| {
        let (id, name) = (member.id(), member.name().to_owned());
        let url = member.peer_urls().first().map(String::as_str).unwrap_or_default();
        let host = host(url).split('.').next().unwrap_or_default().to_owned();
        let key = if name.is_empty() { format!("unstarted {id:x}") } else { name.clone() };
        (key, Member { id, name, host, learner: member.is_learner() })
    });
    Ok(Membership { cluster, leader: status.leader(), members: members.collect() })
}

/// Demands that this member serves a linearizable read itself, as a voter, in this version if one is given.
pub async fn serves(door: &Door, version: Option<&str>) -> Result<()> {
    let mut client = dial(door).await?;
    client.get(PROBE_KEY, None).await.map_err(told)?;
    let status = client.status().await.map_err(told)?;
    if status.is_learner() {
        bail!("it is a learner");
    }
    match version {
        Some(version) if status.version() != version => bail!("it runs {}, not {version}", status.version()),
        Some(_) | None => Ok(()),
    }
}

/// etcd-client's error has no source; its text says all.
#[expect(clippy::needless_pass_by_value, reason = "what map_err hands over")]
pub fn told(error: etcd_client::Error) -> anyhow::Error {
    anyhow!("{error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_member_that_stands_still_is_not_waited_for() {
        let error = answers(CALL_DEADLINE, std::future::pending::<()>()).await.unwrap_err();
        assert_eq!(error.to_string(), "no answer within 2 s");
    }
}
