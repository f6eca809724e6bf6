//! The linearizable member list: its form here, and the one call that etcd-client can't make.

use std::collections::BTreeSet;

use etcd_client::proto::PbMemberListResponse;
use http::uri::PathAndQuery;
use tonic::{client::Grpc, transport::Channel};
use tonic_prost::ProstCodec;

use crate::{
    error::{Call, CallError},
    ids::{ClusterId, MemberId},
};

/// A member list, as applied by the member that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberList {
    /// The cluster that answered.
    pub cluster: ClusterId,
    /// The member that answered.
    pub answered_by: MemberId,
    /// Its members, by ascending id.
    pub members: Vec<Member>,
}

impl MemberList {
    /// The ids, to hold against the list that a change was planned from.
    pub fn ids(&self) -> BTreeSet<MemberId> {
        self.members.iter().map(|member| member.id).collect()
    }

    /// The member with this id.
    pub fn get(&self, id: MemberId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    /// The member that has this peer URL: how to find one whose `add_learner` was never answered.
    pub fn by_peer_url(&self, url: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.peer_urls.iter().any(|own| own == url))
    }

    /// Takes an answer's header and members.
    pub(crate) fn of(
        call: Call,
        header: Option<&etcd_client::ResponseHeader>,
        members: &[etcd_client::Member],
    ) -> Result<Self, CallError> {
        let header = header.ok_or(CallError::Answer { call, missing: "header" })?;
        let mut members: Vec<_> = members.iter().map(Member::of).collect();
        members.sort_by_key(|member| member.id);
        Ok(Self { cluster: ClusterId(header.cluster_id()), answered_by: MemberId(header.member_id()), members })
    }
}

/// One line of a member list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: MemberId,
    /// The name it published; empty until it has been started once.
    pub name: String,
    /// Where other members find it.
    pub peer_urls: Vec<String>,
    /// Where clients find it; empty until it has been started once.
    pub client_urls: Vec<String>,
    /// It listens and does not vote.
    pub learner: bool,
}

impl Member {
    /// Whether it has published its name once.
    pub fn started(&self) -> bool {
        !self.name.is_empty()
    }

    fn of(member: &etcd_client::Member) -> Self {
        Self {
            id: MemberId(member.id()),
            name: member.name().to_owned(),
            peer_urls: member.peer_urls().to_vec(),
            client_urls: member.client_urls().to_vec(),
            learner: member.is_learner(),
        }
    }
}

/// `MemberListRequest` of etcd's `rpc.proto`. etcd-client sends it with `linearizable: false` and has no option for it
/// (0.21.1, `src/rpc/cluster.rs`): such a list may be stale, and no change may be planned from it.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
struct MemberListRequest {
    #[prost(bool, tag = "1")]
    linearizable: bool,
}

/// Asks for the list after a round of the quorum.
pub(crate) async fn linearizable(channel: Channel) -> Result<MemberList, CallError> {
    const CALL: Call = Call::MemberList;
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(|source| CallError::Unanswered { call: CALL, source: Box::new(source) })?;
    let answer: tonic::Response<PbMemberListResponse> = grpc
        .unary(
            tonic::Request::new(MemberListRequest { linearizable: true }),
            PathAndQuery::from_static("/etcdserverpb.Cluster/MemberList"),
            ProstCodec::default(),
        )
        .await
        .map_err(|status| CallError::from_status(CALL, status))?;
    let answer = etcd_client::MemberListResponse(answer.into_inner());
    MemberList::of(CALL, answer.header(), answer.members())
}
