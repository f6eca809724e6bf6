//! `quorate-agent seed`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use quorate_backup::keys::KeyFiles;
use quorate_backup::launch::{Identity, PORT};
use quorate_backup::restore::{Bump, Membership, Restored, Tool, Wanted};
use quorate_backup::seed::{self, Desk, Filled, Order};
use quorate_backup::ticket::{EtcdVersion, MemberName, VolumeUid};

use super::arguments::{IdentityArgument, StoreArguments};
use super::choose::WantedArguments;

/// Its arguments.
#[derive(Debug, Args)]
pub struct Seed {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    identity: IdentityArgument,
    #[command(flatten)]
    wanted: WantedArguments,
    /// Where the member's volume is mounted; etcd's data directory becomes the folder "data" in it
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/etcd")]
    volume: PathBuf,
    /// The file in which the kubelet shows the pod's ticket annotation: once there is one, nothing is restored
    #[arg(long, value_name = "FILE", default_value = "/etc/quorate/ticket")]
    ticket: PathBuf,
    /// Where to answer how far it is; [::] also serves IPv4, and falls back to 0.0.0.0
    #[arg(long, value_name = "ADDRESS", default_value_t = SocketAddr::from(([0_u16; 8], PORT)))]
    listen: SocketAddr,
    /// The member that this pod is: its name
    #[arg(long, value_name = "NAME", env = "QUORATE_MEMBER")]
    member: String,
    /// The UID of the member's claim; for ephemeral storage the pod's
    #[arg(long, value_name = "UID", env = "QUORATE_VOLUME")]
    volume_uid: String,
    /// The member's peer URL
    #[arg(long, value_name = "URL")]
    peer_url: String,
    /// What makes the new cluster another one than the old
    #[arg(long, value_name = "TOKEN")]
    token: String,
    /// The version of etcd that will run, and of etcdutl
    #[arg(long, value_name = "VERSION")]
    etcd_version: String,
    /// etcd's limit for its database: above 60 % of it the history is left out, and what is larger even so is not restored
    #[arg(long, value_name = "BYTES")]
    quota: Option<u64>,
    /// etcdutl: a path, or a name on PATH
    #[arg(long, value_name = "PROGRAM", default_value = "etcdutl")]
    etcdutl: PathBuf,
    /// How far the revision is moved on. It has to be above every revision that was ever handed out, so that clients notice
    /// what is gone. Not given: to the microseconds since 1970, and by 1,000,000,000 at least, which is above all that came
    /// after the backup and that earlier restores have handed out. 0 is for looking at a backup only
    #[arg(long, value_name = "REVISIONS")]
    bump_revision: Option<u64>,
}

impl Seed {
    /// Restores; ends when that is done.
    pub fn run(self) -> anyhow::Result<()> {
        super::run(Box::pin(self.seed()))
    }

    async fn seed(self) -> anyhow::Result<()> {
        let Self {
            store,
            identity,
            wanted,
            volume,
            ticket,
            listen,
            member,
            volume_uid,
            peer_url,
            token,
            etcd_version,
            quota,
            etcdutl,
            bump_revision,
        } = self;
        let order = Order {
            volume,
            identity: Identity { member: MemberName::new(&member), volume: VolumeUid::new(volume_uid) },
            version: EtcdVersion::new(etcd_version),
            ticket,
            quota,
            wanted: Wanted::from(wanted),
            tool: Tool { program: etcdutl, bump: bump_revision.map_or(Bump::ToTheClock, Bump::By) },
            membership: Membership {
                initial_cluster: format!("{member}={peer_url}"),
                name: member,
                token,
                peer_urls: peer_url,
            },
        };
        let keys = KeyFiles::from(identity);
        match seed::until_restored(Desk { listen }, &order, || store.open(keys.clone())).await {
            Filled::Now(Restored {
                revision, events, later, leases_of_unknown_ttl, alarms, left_out, bytes, ..
            }) => {
                tracing::info!(
                    events,
                    later,
                    left_out,
                    bytes,
                    leases_of_unknown_ttl,
                    alarms,
                    "revision {revision} was restored for {}",
                    order.identity.member
                );
            }
            Filled::Before => tracing::info!("the backup was restored before"),
            Filled::Started => tracing::info!("etcd was started on this volume: nothing is restored onto it again"),
        }
        Ok(())
    }
}
