//! Procedures that change files.
#![expect(clippy::result_large_err, reason = "a call that is refused tells as much as one that is not")]

use super::reply_cache::{CacheLookup, ClientKey};
use super::{Answer, CallOrigin, Core, RefusalReply, decode_arguments, encode_success};
use crate::export::{Caller, ChangeResult, FileInfo, OpenFile, User};
use crate::wire::mount::Text;
use crate::wire::nfs3::{
    CommitArguments, CommitResult, CreateArguments, CreateResult, Entry, FileHandle, LinkArguments,
    LinkResult, MakeDirectoryArguments, MakeNodeArguments, NfsResult, Procedure, Refusal, RenameArguments,
    RenameResult, SetAttributesArguments, Status, SymbolicLinkArguments, WeakCacheConsistency,
};
use crate::wire::rpc::{Call, Reply};

/// Results, or a status with the attributes of the file or directory that was to be changed.
type Outcome<T> = NfsResult<T, WeakCacheConsistency>;

impl Core {
    /// Makes a change, and returns the reply. A call that a client repeats, because no reply arrived, is done
    /// once.
    pub(super) fn execute_change(
        &self,
        call: &Call<'_>,
        procedure: Procedure,
        caller: &Caller,
        from: CallOrigin,
    ) -> Result<Answer, RefusalReply> {
        let answer = self.dispatch_change(call, procedure, caller, from);
        self.export.count_change();
        answer
    }

    fn dispatch_change(
        &self,
        call: &Call<'_>,
        procedure: Procedure,
        caller: &Caller,
        from: CallOrigin,
    ) -> Result<Answer, RefusalReply> {
        // Done a second time, these have the same effect and reply.
        match procedure {
            Procedure::Write => self.execute_write(call.xid, caller, &decode_arguments(call)?),
            Procedure::Commit => {
                Ok(Answer::Reply(encode_success(call.xid, &self.commit(caller, &decode_arguments(call)?))))
            }
            _ => {
                // The caller, too: another one's call with the same bytes, from a port that is not trusted,
                // must not be the answer.
                let asked = (procedure, caller, call.credential.body, call.arguments);
                let is_untrusted = *caller == Caller::User(User::UNTRUSTED);
                let client = ClientKey { address: from.address.ip(), is_untrusted };
                let key = match self.reply_cache.begin_call(client, call.xid, asked, from.connection_id) {
                    CacheLookup::New(key) => key,
                    CacheLookup::Running(superseded) => return Ok(Answer::InProgress { superseded }),
                    CacheLookup::Done(made) => return made.map(Answer::Reply),
                };
                let made = self.apply_change(call, procedure, caller);
                match (self.reply_cache.finish_call(client, key, &made), made) {
                    (None, made) => made.map(Answer::Reply),
                    (Some(also), made) => {
                        let reply =
                            made.unwrap_or_else(|refused| super::encode_empty_reply(refused, call.xid));
                        Ok(Answer::Repeated { reply, also })
                    }
                }
            }
        }
    }

    fn apply_change(
        &self,
        call: &Call<'_>,
        procedure: Procedure,
        caller: &Caller,
    ) -> Result<Vec<u8>, RefusalReply> {
        let xid = call.xid;
        let made = match procedure {
            Procedure::SetAttr => encode_success(xid, &self.set_attributes(caller, &decode_arguments(call)?)),
            Procedure::Create => encode_success(xid, &self.create(caller, &decode_arguments(call)?)),
            Procedure::MakeDirectory => {
                encode_success(xid, &self.make_directory(caller, &decode_arguments(call)?))
            }
            Procedure::SymbolicLink => encode_success(xid, &self.make_link(caller, &decode_arguments(call)?)),
            Procedure::Remove => encode_success(xid, &self.remove(caller, &decode_arguments(call)?, false)),
            Procedure::RemoveDirectory => {
                encode_success(xid, &self.remove(caller, &decode_arguments(call)?, true))
            }
            Procedure::Rename => encode_success(xid, &self.rename(caller, &decode_arguments(call)?)),
            Procedure::Link => encode_success(xid, &self.link(caller, &decode_arguments(call)?)),
            Procedure::MakeNode => encode_success(xid, &self.make_node(caller, &decode_arguments(call)?)),
            _ => return Err(Reply::ProcedureUnavailable),
        };
        self.save_index();
        Ok(made)
    }

    fn set_attributes(
        &self,
        caller: &Caller,
        asked: &SetAttributesArguments,
    ) -> Outcome<WeakCacheConsistency> {
        match self.export.file_by_handle(&asked.file) {
            Ok(file) => {
                let done = self.export.set_attributes(caller, &file, &asked.new, asked.guard);
                result_or_refusal(done, |(), changed| changed)
            }
            Err(status) => self.refusal_for(status, &asked.file),
        }
    }

    /// Commits the whole file, whatever range is requested.
    fn commit(&self, caller: &Caller, asked: &CommitArguments) -> Outcome<CommitResult> {
        let committed = self.export.commit(caller, &asked.file);
        // Read after the change: if another call reported lost data meanwhile, this verifier shows it.
        let verifier = self.export.write_verifier();
        result_or_refusal(committed, |(), changed| CommitResult { changed, verifier })
    }

    fn create(&self, caller: &Caller, asked: &CreateArguments<'_>) -> Outcome<CreateResult> {
        self.make_in_directory(&asked.at, |directory, name| {
            self.export.create(caller, directory, name, &asked.how)
        })
    }

    fn make_directory(&self, caller: &Caller, asked: &MakeDirectoryArguments<'_>) -> Outcome<CreateResult> {
        let new = &asked.attributes;
        self.make_in_directory(&asked.at, |directory, name| {
            self.export.make_directory(caller, directory, name, new)
        })
    }

    fn make_link(&self, caller: &Caller, asked: &SymbolicLinkArguments<'_>) -> Outcome<CreateResult> {
        let (Text(path), new) = (asked.path, &asked.attributes);
        self.make_in_directory(&asked.at, |directory, name| {
            self.export.make_link(caller, directory, name, path, new)
        })
    }

    fn make_node(&self, caller: &Caller, asked: &MakeNodeArguments<'_>) -> Outcome<CreateResult> {
        self.make_in_directory(&asked.at, |directory, name| {
            self.export.make_node(caller, directory, name, &asked.node)
        })
    }

    fn make_in_directory(
        &self,
        at: &Entry<'_>,
        make: impl FnOnce(&OpenFile, &[u8]) -> ChangeResult<FileInfo>,
    ) -> Outcome<CreateResult> {
        match self.export.file_by_handle(&at.directory) {
            Ok(directory) => result_or_refusal(make(&directory, at.name.0), |found, directory| {
                CreateResult { file: Some(found.handle), attributes: Some(found.attributes), directory }
            }),
            Err(status) => self.refusal_for(status, &at.directory),
        }
    }

    fn remove(&self, caller: &Caller, at: &Entry<'_>, is_directory: bool) -> Outcome<WeakCacheConsistency> {
        match self.export.file_by_handle(&at.directory) {
            Ok(directory) => result_or_refusal(
                self.export.remove(caller, &directory, at.name.0, is_directory),
                |(), changed| changed,
            ),
            Err(status) => self.refusal_for(status, &at.directory),
        }
    }

    fn rename(&self, caller: &Caller, asked: &RenameArguments<'_>) -> NfsResult<RenameResult, RenameResult> {
        let (from, to) = (&asked.from, &asked.to);
        let both = self
            .export
            .file_by_handle(&from.directory)
            .and_then(|one| Ok((one, self.export.file_by_handle(&to.directory)?)));
        let ((done, from), to) = match both {
            Ok((one, other)) => self.export.rename(caller, (&one, from.name.0), (&other, to.name.0)),
            Err(status) => (
                (Err(status), self.export.unchanged_attributes(&from.directory)),
                self.export.unchanged_attributes(&to.directory),
            ),
        };
        let renamed = RenameResult { from, to };
        done.map(|()| renamed).map_err(|status| Refusal { status, rest: renamed })
    }

    fn link(&self, caller: &Caller, asked: &LinkArguments<'_>) -> NfsResult<LinkResult, LinkResult> {
        let at = &asked.at;
        let both = self
            .export
            .file_by_handle(&asked.file)
            .and_then(|one| Ok((one, self.export.file_by_handle(&at.directory)?)));
        let (done, directory) = match &both {
            Ok((file, directory)) => self.export.link(caller, file, directory, at.name.0),
            Err(status) => (Err(*status), self.export.unchanged_attributes(&at.directory)),
        };
        let attributes = self.export.file_by_handle(&asked.file).and_then(|file| file.attributes()).ok();
        let linked = LinkResult { attributes, directory };
        done.map(|()| linked).map_err(|status| Refusal { status, rest: linked })
    }

    pub(super) fn refusal_for<T>(&self, status: Status, file: &FileHandle) -> Outcome<T> {
        Err(Refusal { status, rest: self.export.unchanged_attributes(file) })
    }
}

pub(super) fn result_or_refusal<A, T>(
    (done, changed): ChangeResult<A>,
    make: impl FnOnce(A, WeakCacheConsistency) -> T,
) -> Outcome<T> {
    match done {
        Ok(value) => Ok(make(value, changed)),
        Err(status) => Err(Refusal { status, rest: changed }),
    }
}
