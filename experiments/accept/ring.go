//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Constants of linux/io_uring.h.
const (
	opPollAdd = 6
	opAccept  = 13
	opCancel  = 14
	opClose   = 19
	opSend    = 26
	opRecv    = 27

	sqeFixedFile    = 1 << 0
	sqeBufferSelect = 1 << 5
	sqeSkipSuccess  = 1 << 6

	acceptMultishot = 1 << 0 // in ioprio
	recvMultishot   = 1 << 1 // in ioprio
	indexAlloc      = ^uint32(0)

	cqeBuffer = 1 << 0
	cqeMore   = 1 << 1

	setupCQSize       = 1 << 3
	setupSubmitAll    = 1 << 7
	setupCoopTaskrun  = 1 << 8
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13

	enterGetEvents      = 1 << 0
	enterExtArg         = 1 << 3
	enterRegisteredRing = 1 << 4

	registerFiles2     = 13
	registerRingFds    = 20
	registerBufferRing = 22
	sparseFiles        = 1 << 0

	offsetRings = 0
	offsetSQEs  = 0x10000000
)

// params is struct io_uring_params.
type params struct {
	sqEntries, cqEntries, flags, threadCPU, threadIdle, features, wqFd uint32
	_                                                                  [3]uint32
	sq                                                                 struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, cqes, flags, _ uint32
		_                                                   uint64
	}
}

// sqe is struct io_uring_sqe, a request to the kernel.
type sqe struct {
	op, flags   uint8
	ioprio      uint16
	fd          int32
	offset      uint64
	addr        uint64
	len         uint32
	opFlags     uint32
	user        uint64
	bufferGroup uint16
	_           uint16
	fileIndex   uint32
	_           [2]uint64
}

// cqe is struct io_uring_cqe, a result.
type cqe struct {
	user  uint64
	res   int32
	flags uint32
}

// ring is an io_uring. All its methods are called by the thread that opened it.
type ring struct {
	fd       int
	enterFd  int // index of the registered ring
	memory   []byte
	sqMemory []byte

	sqHead, sqTail   *uint32
	sqMask           uint32
	sqes             []sqe
	next             uint32 // where the next request goes
	cqHead, cqTail   *uint32
	cqMask           uint32
	cqes             []cqe
	bufferMemory     []byte
	bufferMask       uint16
	buffers          []byte
	bufferSize       int
	bufferNext       uint16
	short            unix.Timespec // of the first wait
	shortArg, anyArg eventsArg
}

// eventsArg is struct io_uring_getevents_arg.
type eventsArg struct {
	sigmask     uint64
	sigmaskSize uint32
	minWait     uint32
	timespec    uint64
}

// openRing opens a ring for so many requests per round and so many results. It uses the newest way of running completions that
// the kernel has.
func openRing(requests, results uint32, short time.Duration) (*ring, error) {
	for _, flags := range []uint32{setupSingleIssuer | setupDeferTaskrun, setupCoopTaskrun} {
		p := params{flags: flags | setupSubmitAll | setupCQSize, cqEntries: results}
		fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(requests), uintptr(unsafe.Pointer(&p)), 0)
		if errno == unix.EINVAL {
			continue
		}
		if errno != 0 {
			return nil, fmt.Errorf("io_uring_setup: %w", errno)
		}
		r := &ring{fd: int(fd), short: unix.NsecToTimespec(short.Nanoseconds())}
		r.shortArg.timespec = uint64(uintptr(unsafe.Pointer(&r.short)))
		if err := r.mapMemory(&p); err != nil {
			return nil, errors.Join(err, r.close())
		}
		return r, nil
	}
	return nil, errors.New("io_uring_setup: the kernel is too old")
}

func (r *ring) mapMemory(p *params) error {
	size := max(p.sq.array+p.sqEntries*4, p.cq.cqes+p.cqEntries*uint32(unsafe.Sizeof(cqe{})))
	var err error
	if r.memory, err = unix.Mmap(r.fd, offsetRings, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return fmt.Errorf("map ring: %w", err)
	}
	if r.sqMemory, err = unix.Mmap(r.fd, offsetSQEs, int(p.sqEntries)*int(unsafe.Sizeof(sqe{})), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return fmt.Errorf("map requests: %w", err)
	}
	word := func(offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.memory[offset])) }
	r.sqHead, r.sqTail, r.sqMask = word(p.sq.head), word(p.sq.tail), *word(p.sq.mask)
	r.cqHead, r.cqTail, r.cqMask = word(p.cq.head), word(p.cq.tail), *word(p.cq.mask)
	for i, index := range unsafe.Slice(word(p.sq.array), p.sqEntries) {
		if index != uint32(i) {
			*word(p.sq.array + uint32(i)*4) = uint32(i)
		}
	}
	r.sqes = unsafe.Slice((*sqe)(unsafe.Pointer(&r.sqMemory[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*cqe)(unsafe.Pointer(&r.memory[p.cq.cqes])), p.cqEntries)
	own := struct {
		offset, _ uint32
		data      uint64
	}{offset: ^uint32(0), data: uint64(r.fd)}
	if err := r.register(registerRingFds, unsafe.Pointer(&own), 1); err != nil {
		return fmt.Errorf("register ring: %w", err)
	}
	r.enterFd = int(own.offset)
	return nil
}

func (r *ring) register(what uintptr, arg unsafe.Pointer, n uintptr) error {
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), what, uintptr(arg), n, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// registerSlots makes room for n descriptors of the ring's own, which the process does not share.
func (r *ring) registerSlots(n uint32) error {
	arg := struct {
		n, flags         uint32
		_, data, tagData uint64
	}{n: n, flags: sparseFiles}
	if err := r.register(registerFiles2, unsafe.Pointer(&arg), unsafe.Sizeof(arg)); err != nil {
		return fmt.Errorf("register descriptors: %w", err)
	}
	return nil
}

// registerBuffers gives the kernel n buffers of a size to receive into, as group 0. n is a power of two.
func (r *ring) registerBuffers(n, size int) error {
	var err error
	if r.bufferMemory, err = unix.Mmap(-1, 0, max(n*16, os.Getpagesize()), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return fmt.Errorf("map buffers: %w", err)
	}
	arg := struct {
		address      uint64
		entries      uint32
		group, flags uint16
		_            [3]uint64
	}{address: uint64(uintptr(unsafe.Pointer(&r.bufferMemory[0]))), entries: uint32(n)}
	if err := r.register(registerBufferRing, unsafe.Pointer(&arg), 1); err != nil {
		return fmt.Errorf("register buffers: %w", err)
	}
	r.bufferMask, r.bufferSize, r.buffers = uint16(n-1), size, make([]byte, n*size)
	for id := range n {
		r.putBuffer(uint16(id))
	}
	r.publishBuffers()
	return nil
}

// buffer returns the first n bytes of a buffer.
func (r *ring) buffer(id uint16, n int) []byte {
	return r.buffers[int(id)*r.bufferSize:][:n]
}

// putBuffer returns a buffer to the kernel, at the next publishBuffers.
func (r *ring) putBuffer(id uint16) {
	entry := unsafe.Pointer(&r.bufferMemory[int(r.bufferNext&r.bufferMask)*16])
	*(*uint64)(entry) = uint64(uintptr(unsafe.Pointer(&r.buffers[int(id)*r.bufferSize])))
	*(*uint32)(unsafe.Add(entry, 8)) = uint32(r.bufferSize)
	*(*uint16)(unsafe.Add(entry, 12)) = id
	r.bufferNext++
}

// publishBuffers shows the kernel the buffers that were put back. The tail is the upper half of a word whose lower half is the
// id in the first entry, on machines with the low byte first.
func (r *ring) publishBuffers() {
	id := *(*uint16)(unsafe.Pointer(&r.bufferMemory[12]))
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&r.bufferMemory[12])), uint32(id)|uint32(r.bufferNext)<<16)
}

// request returns an empty request, which is submitted by the next enter. If the queue is full, it is submitted first.
func (r *ring) request() (*sqe, error) {
	for r.next-atomic.LoadUint32(r.sqHead) == uint32(len(r.sqes)) {
		if errno := r.enter(0, &r.anyArg, true); errno != 0 && errno != unix.EINTR {
			return nil, fmt.Errorf("io_uring_enter: %w", errno)
		}
	}
	s := &r.sqes[r.next&r.sqMask]
	*s = sqe{}
	r.next++
	return s, nil
}

// enter submits the requests and waits for so many results. If it is brief, the scheduler is not told.
func (r *ring) enter(results uintptr, arg *eventsArg, brief bool) syscall.Errno {
	atomic.StoreUint32(r.sqTail, r.next)
	requests := uintptr(r.next - atomic.LoadUint32(r.sqHead))
	const flags = enterGetEvents | enterExtArg | enterRegisteredRing
	var errno syscall.Errno
	if brief {
		_, _, errno = syscall.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.enterFd), requests, results, flags, uintptr(unsafe.Pointer(arg)),
			unsafe.Sizeof(*arg))
	} else {
		_, _, errno = syscall.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.enterFd), requests, results, flags, uintptr(unsafe.Pointer(arg)),
			unsafe.Sizeof(*arg))
	}
	return errno
}

// wait submits the requests and waits for a result: at first briefly without telling the scheduler, as the loops of front do.
func (r *ring) wait() error {
	errno := r.enter(1, &r.shortArg, true)
	if errno == unix.ETIME || errno == 0 && r.empty() {
		errno = r.enter(1, &r.anyArg, false)
	}
	switch errno {
	case 0, unix.EINTR, unix.ETIME, unix.EAGAIN, unix.EBUSY:
		return nil
	}
	return fmt.Errorf("io_uring_enter: %w", errno)
}

func (r *ring) empty() bool { return *r.cqHead == atomic.LoadUint32(r.cqTail) }

// results calls handle with each result, and makes room for others.
func (r *ring) results(handle func(cqe) error) error {
	head, tail := *r.cqHead, atomic.LoadUint32(r.cqTail)
	for ; head != tail; head++ {
		if err := handle(r.cqes[head&r.cqMask]); err != nil {
			return err
		}
	}
	atomic.StoreUint32(r.cqHead, head)
	return nil
}

func (r *ring) close() error {
	err := unix.Close(r.fd)
	for _, m := range [][]byte{r.memory, r.sqMemory, r.bufferMemory} {
		if m != nil {
			err = errors.Join(err, unix.Munmap(m))
		}
	}
	return err
}
