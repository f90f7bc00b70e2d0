package stream

import "context"

// Commit stores a request, and waits until that is done.
func (s *Stream) Commit(ctx context.Context, r Request) (Outcome, error) {
	receipt, err := s.Store(ctx, r)
	return receipt.Outcome, err
}

// Accept queues a request.
func (s *Stream) Accept(r Request) error {
	_, _, err := s.Begin(context.Background(), r, nil)
	return err
}

// Store is Commit with the receipt.
func (s *Stream) Store(ctx context.Context, r Request) (Receipt, error) {
	receipt, w, err := s.Begin(ctx, r, nil)
	if w == nil {
		return receipt, err
	}
	return w.Receipt(ctx)
}
