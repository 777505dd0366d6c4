//! Functions before which the burst is handed over, because after them a program could notice that it has not
//! been sent.

use super::hooks;
use super::trampoline::before;

// Descriptors: what is known of them is forgotten.
before!(always hooks::before_close; close __close);
before!(always hooks::before_dup2; dup2 __dup2 dup3);
before!(always hooks::before_close_range; close_range);
before!(always hooks::before_closefrom; closefrom);
before!(always hooks::before_socket_change; setsockopt connect __connect bind shutdown ioctl);
before!(always hooks::before_fcntl; fcntl __fcntl fcntl64);
before!(queued hooks::before_dup; dup pclose);

// Jumps, of which those out of signal handlers matter.
before!(locked hooks::before_longjmp; longjmp _longjmp siglongjmp __longjmp_chk);

// The process: it forks by handlers (`process`), here is all else.
before!(queued hooks::before_process_call;
    _Fork vfork __vfork clone posix_spawn posix_spawnp system popen
    kill killpg raise tgkill pthread_kill sigqueue pthread_sigqueue pidfd_send_signal pthread_cancel);
before!(always hooks::before_pthread_exit; pthread_exit);
before!(queued hooks::before_process_end;
    execve execv execvp execvpe execl execlp execle execveat fexecve
    exit _exit _Exit quick_exit abort __assert_fail __assert __assert_perror_fail);

// What applies to the threads of the process that the C library knows, or is refused to a process of several
// threads.
before!(always hooks::before_thread_change; unshare setns chroot capset);
before!(always hooks::before_prctl; prctl);
before!(always hooks::before_syscall; syscall);

// Output elsewhere: by descriptor,
before!(queued hooks::before_output;
    pwrite pwrite64 __pwrite64 pwritev pwritev64 pwritev2 pwritev64v2 sendfile sendfile64 splice tee vmsplice
    copy_file_range eventfd_write mq_send mq_timedsend msgsnd sem_post semop semtimedop
    aio_write aio_write64 lio_listio lio_listio64);
// by stream,
before!(queued hooks::before_output;
    printf fprintf vprintf vfprintf dprintf vdprintf __printf_chk __fprintf_chk __vprintf_chk __vfprintf_chk
    __dprintf_chk __vdprintf_chk puts fputs fputs_unlocked putchar putchar_unlocked putc putc_unlocked
    fputc fputc_unlocked _IO_putc _IO_puts fwrite fwrite_unlocked fflush fflush_unlocked fclose fcloseall freopen
    freopen64 perror psignal __overflow fputws fputws_unlocked putwchar putwchar_unlocked putwc
    putwc_unlocked fputwc fputwc_unlocked wprintf fwprintf vwprintf vfwprintf __wprintf_chk
    __fwprintf_chk __vwprintf_chk __vfwprintf_chk error error_at_line warn warnx vwarn vwarnx err errx
    verr verrx syslog vsyslog __syslog_chk __vsyslog_chk fseek fseeko fseeko64 rewind putw);
// and what others see in a file system.
before!(queued hooks::before_output;
    open open64 __open __open64 __open_2 __open64_2 openat openat64 __openat_2 __openat64_2 creat creat64
    fopen fopen64 rename renameat renameat2 unlink unlinkat remove mkdir mkdirat rmdir link linkat
    symlink symlinkat mknod mknodat mkfifo mkfifoat truncate truncate64 ftruncate ftruncate64 fallocate
    fallocate64 posix_fallocate posix_fallocate64 fsync fdatasync msync sync syncfs utime utimes utimensat
    futimens chmod fchmod fchmodat chown fchown lchown fchownat flock lockf lockf64 mkstemp mkstemp64);

// What arrives.
before!(queued hooks::before_receive; recv __recv_chk recvfrom __recvfrom_chk recvmsg epoll_pwait2);
before!(queued hooks::before_read; read __read __read_chk readv);
before!(queued hooks::before_getsockopt; getsockopt);

// Sleeps, waits for something that is no descriptor, and waits that take more than what is there, or change
// their arguments.
before!(queued hooks::before_wait;
    sleep usleep nanosleep __nanosleep clock_nanosleep pause sigsuspend __sigsuspend sigwait sigwaitinfo sigtimedwait
    wait waitpid __waitpid __wait wait3 wait4 waitid accept accept4 pthread_join sem_wait
    sem_timedwait msgrcv mq_receive mq_timedreceive recvmmsg select __select pselect);
