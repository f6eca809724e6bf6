//! The calls to one member, each with a deadline. One call is one try: repeating is for who observes again first.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use etcd_client::{AlarmAction, AlarmType, DowngradeOptions, MemberAddOptions};
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;

use crate::{
    access::{Access, Endpoint},
    error::{Call, CallError, Refusal},
    ids::{ClusterId, MemberId},
    list::{self, MemberList},
};

/// For calls that only read. With a leader they take milliseconds; without one, etcd would hold them for seven seconds.
const READ_DEADLINE: Duration = Duration::from_secs(2);

/// For calls that change something. etcd itself gives up only after five seconds and two election timeouts, which makes
/// seven with its defaults (`Config.ReqTimeout`). Nobody may wait for that here: a change has to end within the five seconds
/// after which another operator may begin. A little less, so that it is this deadline which ends it, and the connection is
/// noted as suspect. Whether the change was made all the same, the member list shows.
pub const CHANGE_DEADLINE: Duration = Duration::from_millis(4_500);

/// For moving the leadership. To a voter that has caught up it takes milliseconds; else raft gives the transfer up after
/// an election timeout (1 s by default), of which etcd takes no notice and waits on for as long as the caller does.
const MOVE_DEADLINE: Duration = Duration::from_secs(3);

/// Who gives a call up that has waited for so long leaves a connection that may lead nowhere: one that was cut without a word
/// is not noticed by TCP for minutes. What is given up earlier is a call that another member has answered.
const ANSWER_IS_LATE: Duration = Duration::from_millis(400);

/// After this it is asked what came of a change that etcd may never answer, and as often again.
const ANSWER_IS_DUE: Duration = Duration::from_millis(300);

/// One member's client port. Cheap to clone; clones share the connection.
#[derive(Clone, Debug)]
pub struct MemberClient {
    channel: Channel,
    suspect: Arc<AtomicBool>,
}

/// A call that waits for its answer. Given up after long, it is one that was left without an answer.
struct Waiting<'a> {
    since: Instant,
    /// Whose connection it is; nobody's once it has ended by itself.
    suspect: Option<&'a AtomicBool>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(suspect) = self.suspect.filter(|_| self.since.elapsed() >= ANSWER_IS_LATE) {
            suspect.store(true, Ordering::Relaxed);
        }
    }
}

/// What was added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    /// The id of the new learner.
    pub id: MemberId,
    /// The member list with it.
    pub list: MemberList,
}

/// What a member says of itself. It need not have a quorum; its client port has to be open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The member that answered.
    pub member: MemberId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its version, as `3.6.16`.
    pub version: String,
    /// Whom it sees leading.
    pub leader: Option<MemberId>,
    /// The raft term it is in.
    pub raft_term: u64,
    /// The raft index it knows as committed.
    pub committed: u64,
    /// The raft index it has applied.
    pub applied: u64,
    /// It counts itself as a learner.
    pub learner: bool,
    /// The version of its database file, as `3.6.0`; empty from a member of 3.5.
    pub storage_version: String,
    /// The version that the cluster may be taken down to, if that was enabled.
    pub downgrade: Option<String>,
    /// Its alarms and troubles, in its words.
    pub errors: Vec<String>,
}

impl MemberClient {
    pub(crate) fn new(access: &Access, endpoint: &Endpoint) -> Result<Self, CallError> {
        Ok(Self { channel: access.channel(endpoint)?, suspect: Arc::new(AtomicBool::new(false)) })
    }

    /// Whether a call was left without an answer: the connection may lead to an address where nobody lives any more.
    pub(crate) fn suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    /// The member list after a round of the quorum: the truth of membership. No quorum, no answer.
    pub async fn member_list(&self) -> Result<MemberList, CallError> {
        self.within(Call::MemberList, READ_DEADLINE, list::linearizable(self.channel.clone())).await
    }

    /// Adds a member that listens at `peer_url` as a learner. If the outcome is unknown, look for the URL in the list.
    pub async fn add_learner(&self, peer_url: &str) -> Result<Added, CallError> {
        const CALL: Call = Call::AddLearner;
        let options = MemberAddOptions::new().with_is_learner();
        let answer = self
            .client(CALL, CHANGE_DEADLINE, async |mut client| client.member_add([peer_url], Some(options)).await)
            .await?;
        let id = answer.member().ok_or(CallError::Answer { call: CALL, missing: "member" })?.id();
        Ok(Added { id: MemberId(id), list: MemberList::of(CALL, answer.header(), answer.member_list())? })
    }

    /// Makes a learner a voter. etcd checks no more than that the learner's log came near the leader's *once*: it
    /// promotes a dead one. Whether it is alive and has caught up is for the caller to know.
    pub async fn promote(&self, id: MemberId) -> Result<MemberList, CallError> {
        const CALL: Call = Call::Promote;
        let answer = self.client(CALL, CHANGE_DEADLINE, async |mut client| client.member_promote(id.0).await).await?;
        MemberList::of(CALL, answer.header(), answer.members())
    }

    /// Removes a member, for good: its id never comes back. Have that written down right after it: [`Self::persist_commit`].
    pub async fn remove(&self, id: MemberId) -> Result<MemberList, CallError> {
        const CALL: Call = Call::Remove;
        let answer = self.client(CALL, CHANGE_DEADLINE, async |mut client| client.member_remove(id.0).await).await?;
        MemberList::of(CALL, answer.header(), answer.members())
    }

    /// Has a quorum write to its disks how far the log is committed by now, and changes nothing: it reads the alarms, which etcd does by an
    /// entry of the log (`Alarm` in `server/etcdserver/v3_server.go`).
    ///
    /// What was committed last is in a buffer until there is another entry (`MustSync` in etcd's raft; `Save` in
    /// `server/storage/wal/wal.go`). Of two voters one was removed: killed before that, the other still counts both when it starts
    /// again, and never leads, as nobody is left to vote for it (etcd-io/etcd#10563, k3s-io/k3s#12908).
    pub async fn persist_commit(&self) -> Result<(), CallError> {
        let read = async |mut client: etcd_client::Client| client.alarm(AlarmAction::Get, AlarmType::None, None).await;
        self.client(Call::PersistCommit, READ_DEADLINE, read).await?;
        Ok(())
    }

    /// Moves the leadership to a voter. Only the leader does this: call it there.
    pub async fn move_leader(&self, to: MemberId) -> Result<(), CallError> {
        self.client(Call::MoveLeader, MOVE_DEADLINE, async |mut client| client.move_leader(to.0).await).await?;
        Ok(())
    }

    /// What the member says of itself.
    pub async fn status(&self) -> Result<Status, CallError> {
        const CALL: Call = Call::Status;
        let answer = self.client(CALL, READ_DEADLINE, async |mut client| client.status().await).await?;
        let header = answer.header().ok_or(CallError::Answer { call: CALL, missing: "header" })?;
        Ok(Status {
            member: MemberId(header.member_id()),
            cluster: ClusterId(header.cluster_id()),
            version: answer.version().to_owned(),
            leader: (answer.leader() != 0).then(|| MemberId(answer.leader())),
            raft_term: answer.raft_term(),
            committed: answer.raft_index(),
            applied: answer.raft_applied_index(),
            learner: answer.is_learner(),
            storage_version: answer.storage_version().to_owned(),
            downgrade: answer
                .downgrade_info()
                .filter(|info| info.enabled())
                .map(|info| info.target_version().to_owned()),
            errors: answer.errors().to_vec(),
        })
    }

    /// Whether a downgrade is enabled, of a cluster of 3.5, where no status tells of it. It is asked whether another one could be,
    /// to `below`, the minor below the cluster's (`3.4.0`): etcd refuses that as long as one is enabled (`downgradeValidate` in
    /// `server/etcdserver/v3_server.go`). Nothing is changed.
    pub async fn downgrade_is_enabled(&self, below: &str) -> Result<bool, CallError> {
        let options = DowngradeOptions::Validate(below.to_owned());
        match self.downgrade(Call::AskForDowngrade, READ_DEADLINE, options).await {
            Ok(()) => Ok(false),
            Err(error) if error.refusal() == Some(Refusal::DowngradeInProgress) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Lets the version that the cluster runs at be lowered to `target` (`3.6.0`), once etcd has found that it can. From
    /// then on no new member is taken, until all members run that version or it is cancelled.
    pub async fn enable_downgrade(&self, target: &str) -> Result<(), CallError> {
        // Both within the deadline of one change, by which whoever calls bounds this.
        let work = async |client: etcd_client::Client| {
            let mut client = client.maintenance_client();
            client.downgrade(DowngradeOptions::Validate(target.to_owned())).await?;
            client.downgrade(DowngradeOptions::Enable(target.to_owned())).await
        };
        self.client(Call::EnableDowngrade, CHANGE_DEADLINE, work).await?;
        Ok(())
    }

    /// Takes that back. 3.5 does so and never answers (`applyV3` has no result of it, `server/etcdserver/apply.go`): what is waited
    /// for is its answer, or, asked as by [`Self::downgrade_is_enabled`], that none is enabled any more.
    pub async fn cancel_downgrade(&self, below: &str) -> Result<(), CallError> {
        let none_is_enabled = async {
            loop {
                sleep(ANSWER_IS_DUE).await;
                if matches!(self.downgrade_is_enabled(below).await, Ok(false)) {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            answer = self.downgrade(Call::CancelDowngrade, CHANGE_DEADLINE, DowngradeOptions::Cancel) => answer,
            () = none_is_enabled => Ok(()),
        }
    }

    async fn downgrade(&self, call: Call, deadline: Duration, options: DowngradeOptions) -> Result<(), CallError> {
        let work = async |client: etcd_client::Client| client.maintenance_client().downgrade(options).await;
        self.client(call, deadline, work).await?;
        Ok(())
    }

    /// One call through etcd-client.
    async fn client<T>(
        &self,
        call: Call,
        deadline: Duration,
        work: impl AsyncFnOnce(etcd_client::Client) -> Result<T, etcd_client::Error>,
    ) -> Result<T, CallError> {
        let channel = etcd_client::Channel::Tonic(self.channel.clone());
        // On the heap: etcd-client's calls are futures of some 40 KB.
        let work = Box::pin(async {
            let client = etcd_client::Client::from_channel(channel, None).await?;
            work(client).await
        });
        self.within(call, deadline, async { work.await.map_err(|error| CallError::from_client(call, error)) }).await
    }

    /// Bounds a call and remembers whether it was left without an answer, also by who waited no longer.
    async fn within<T>(
        &self,
        call: Call,
        deadline: Duration,
        work: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let mut waiting = Waiting { since: Instant::now(), suspect: Some(&*self.suspect) };
        let result = timeout(deadline, work).await.unwrap_or(Err(CallError::TimedOut { call, deadline }));
        waiting.suspect = None;
        if result.as_ref().is_err_and(CallError::outcome_unknown) {
            self.suspect.store(true, Ordering::Relaxed);
        }
        result
    }
}
