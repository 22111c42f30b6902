"""Operations that are faster on a CPU than PyTorch's."""
