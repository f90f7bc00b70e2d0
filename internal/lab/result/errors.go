package result

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// An ErrorClass says how a request failed. Each failed request is in exactly one class.
type ErrorClass uint8

// The classes. Requests in StatusError, Redirect and CheckError were answered, all others were not.
const (
	Refused     ErrorClass = iota // connection refused
	Reset                         // connection reset or closed before the answer was complete
	Timeout                       // no complete answer in time
	NoLocalPort                   // EADDRNOTAVAIL, EADDRINUSE: the load generator is out of ports
	NoFile                        // EMFILE, ENFILE: the load generator is out of file descriptors
	Resolve                       // name resolution failed
	Unreachable                   // no route to host or network
	TLSError                      // handshake or certificate
	Protocol                      // the answer violates the protocol
	StatusError                   // unexpected HTTP status; SQL or Redis error
	Redirect                      // HTTP status 3xx other than 304 that no check accepts
	CheckError                    // the answer failed a check of its content
	Unsent                        // due but never sent, because the backlog was full or the step ended
	Unfinished                    // in flight when the run was interrupted
	Other                         // anything else
	classCount
)

var classNames = [classCount]string{
	Refused: "refused", Reset: "reset", Timeout: "timeout", NoLocalPort: "no_local_port", NoFile: "no_file", Resolve: "resolve",
	Unreachable: "unreachable", TLSError: "tls", Protocol: "protocol", StatusError: "status", Redirect: "redirect", CheckError: "check",
	Unsent: "unsent", Unfinished: "unfinished", Other: "other",
}

// ErrorClasses returns every class in display order.
func ErrorClasses() []ErrorClass {
	classes := make([]ErrorClass, classCount)
	for i := range classes {
		classes[i] = ErrorClass(i)
	}
	return classes
}

// String is the name used in files and reports.
func (e ErrorClass) String() string { return classNames[e] }

// Answered reports whether a request of this class got a complete answer.
func (e ErrorClass) Answered() bool { return e == StatusError || e == Redirect || e == CheckError }

// Own reports whether the load generator caused the error.
func (e ErrorClass) Own() bool { return e == NoLocalPort || e == NoFile }

// Errors counts failed requests by class: errors[Timeout]++. In JSON it is an object without the classes that are 0.
type Errors [classCount]int64

// Total is the number of failed requests.
func (e *Errors) Total() int64 {
	var total int64
	for _, n := range e {
		total += n
	}
	return total
}

// Unanswered is the number of requests without a complete answer.
func (e *Errors) Unanswered() int64 { return e.Total() - e.of(ErrorClass.Answered) }

// Own is the number of errors that the load generator caused.
func (e *Errors) Own() int64 { return e.of(ErrorClass.Own) }

// of is the number of errors of some classes.
func (e *Errors) of(some func(ErrorClass) bool) (total int64) {
	for class, n := range e {
		if some(ErrorClass(class)) {
			total += n
		}
	}
	return total
}

// String lists the classes that are not 0: "timeout 3, reset 1".
func (e *Errors) String() string {
	var parts []string
	for class, n := range e {
		if n != 0 {
			parts = append(parts, fmt.Sprintf("%s %d", ErrorClass(class), n))
		}
	}
	return strings.Join(parts, ", ")
}

// MarshalJSON implements json.Marshaler.
func (e Errors) MarshalJSON() ([]byte, error) {
	byName := make(map[string]int64)
	for class, n := range e {
		if n != 0 {
			byName[ErrorClass(class).String()] = n
		}
	}
	return json.Marshal(byName)
}

// UnmarshalJSON implements json.Unmarshaler. An unknown class counts as Other.
func (e *Errors) UnmarshalJSON(data []byte) error {
	var byName map[string]int64
	if err := json.Unmarshal(data, &byName); err != nil {
		return fmt.Errorf("read error counts: %w", err)
	}
	*e = Errors{}
	for name, n := range byName {
		class := slices.Index(classNames[:], name)
		if class < 0 {
			class = int(Other)
		}
		e[class] += n
	}
	return nil
}
