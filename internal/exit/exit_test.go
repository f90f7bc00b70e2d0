package exit

import (
	"errors"
	"fmt"
	"testing"
)

func TestCode(t *testing.T) {
	cause := errors.New("no such file")
	for want, errs := range map[int][]error{
		OK:     {nil, UsageError(nil), FailedError(nil)},
		Failed: {FailedError(cause), fmt.Errorf("load: %w", FailedError(cause))},
		Usage:  {UsageError(cause), errors.Join(cause, UsageError(cause))},
		Error:  {cause},
	} {
		for _, err := range errs {
			if got := Code(err); got != want {
				t.Errorf("%v has code %d, want %d", err, got, want)
			}
		}
	}
	if err := UsageError(cause); !errors.Is(err, cause) || err.Error() != cause.Error() {
		t.Errorf("UsageError changed %v to %v", cause, err)
	}
}
