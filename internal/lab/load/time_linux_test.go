package load

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBeginPromptly changes the slack and the slice of a thread, and nothing else, and sets both back.
func TestBeginPromptly(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 5); err != nil {
		t.Fatal(err)
	}
	now := func() (slack int, attr unix.SchedAttr) {
		slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		read, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return slack, *read
	}
	slackBefore, before := now()
	restore := beginPromptly()
	slackNow, attr := now()
	if slackNow != 1 || attr.Nice != before.Nice || attr.Nice != 5 || attr.Policy != before.Policy {
		t.Errorf("slack %d, %+v; before %+v", slackNow, attr, before)
	}
	if attr.Runtime != uint64(slice) && attr.Runtime != 0 { // 0: a kernel that knows no slices
		t.Errorf("slice %d ns", attr.Runtime)
	}
	restore()
	if slackNow, attr = now(); slackNow != slackBefore || attr != before {
		t.Errorf("restored to slack %d, %+v; before %d, %+v", slackNow, attr, slackBefore, before)
	}
}
