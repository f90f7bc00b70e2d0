package watch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"spillway/internal/lab/result"
)

// TestGaps has a sampler that is replaced in its third second, fails in its fifth and sixth, and later reads only in part.
func TestGaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		sampler := &Sampler{Kind: result.SamplerProcess, Subject: "app", Every: time.Second, Read: func(context.Context) ([]result.Sample, error) {
			reads++
			values := result.Sample{Values: map[string]float64{"x_total": float64(reads)}}
			switch reads {
			case 3:
				values.Gap = &result.Gap{Reason: "process 1 ended; process 2 took its place"}
			case 5, 6:
				return nil, errors.New("process 2 ended")
			case 9:
				return []result.Sample{values}, errors.New("files may not be counted")
			}
			return []result.Sample{values}, nil
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 9500*time.Millisecond)
		defer cancel()
		var samples []result.Sample
		if err := New(time.Now(), sampler).Run(ctx, func(s *result.Sample) error { samples = append(samples, *s); return nil }); err != nil {
			t.Fatal(err)
		}
		series := result.SeriesOf(samples)[0]
		want := []result.SampleError{
			{At: 1, Text: "process 1 ended; process 2 took its place", Gap: true, From: 1, Until: 2},
			{At: 4, Text: "process 2 ended", Gap: true, From: 3, Until: 6},
			{At: 8, Text: "files may not be counted"},
		}
		if len(series.Errors) != len(want) {
			t.Fatalf("%+v, want %+v", series.Errors, want)
		}
		for i := range want {
			if series.Errors[i] != want[i] {
				t.Errorf("%+v, want %+v", series.Errors[i], want[i])
			}
		}
	})
}

// TestGapOfSeveral has a sampler of several subjects that fails once.
func TestGapOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		sampler := &Sampler{Kind: result.SamplerListener, Every: time.Second, Read: func(context.Context) ([]result.Sample, error) {
			if reads++; reads == 2 {
				return nil, errors.New("nothing listens")
			}
			values := map[string]float64{"accept_queue": 1}
			return []result.Sample{{Subject: "127.0.0.1:80", Values: values}, {Subject: "127.0.0.1:81", Values: values}}, nil
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer cancel()
		var samples []result.Sample
		if err := New(time.Now(), sampler).Run(ctx, func(s *result.Sample) error { samples = append(samples, *s); return nil }); err != nil {
			t.Fatal(err)
		}
		var got []result.SampleError
		for _, series := range result.SeriesOf(samples) {
			got = append(got, series.Errors...)
		}
		if want := (result.SampleError{At: 1, Text: "nothing listens", Gap: true, From: 0, Until: 2}); len(got) != 1 || got[0] != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}

// TestMarks reads at the marks in addition to the interval, and not shortly before a mark.
func TestMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zero := time.Now()
		var at []time.Duration
		sampler := &Sampler{Kind: result.SamplerProcess, Every: time.Second, Read: func(context.Context) ([]result.Sample, error) {
			return []result.Sample{{Values: map[string]float64{"x_total": 1}}}, nil
		}}
		w := New(zero, sampler)
		for _, mark := range []time.Duration{2050, 300, 2600, 300, 99_000} {
			w.Mark(zero.Add(mark * time.Millisecond))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer cancel()
		var borders []bool
		if err := w.Run(ctx, func(s *result.Sample) error {
			if s.Sampler == result.SamplerProcess {
				at, borders = append(at, time.Duration(s.At*1000+0.5)*time.Millisecond), append(borders, s.Border)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		want := []time.Duration{0, 300, 1000, 2050, 2600, 3000, 3500}
		marked := []bool{false, true, false, true, true, false, false}
		for i := range want {
			if len(at) != len(want) || at[i] != want[i]*time.Millisecond || borders[i] != marked[i] {
				t.Fatalf("read at %v, borders %v, want %v, %v", at, borders, want, marked)
			}
		}
	})
}
