package load

import (
	"testing"
	"time"
)

// TestAlarm: no alarm is early, and stop ends a wait.
func TestAlarm(t *testing.T) {
	a, err := newAlarm()
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	for range 20 {
		start := time.Now()
		if !a.wait(time.Millisecond) {
			t.Fatal("a wait was ended before stop")
		}
		if took := time.Since(start); took < time.Millisecond {
			t.Fatalf("waited %s instead of 1 ms", took)
		}
	}
	time.AfterFunc(time.Millisecond, a.stop)
	for range 2 {
		if a.wait(time.Hour) {
			t.Error("a wait ended well after stop")
		}
	}
}
