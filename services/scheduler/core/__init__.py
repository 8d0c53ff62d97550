"""The deciding core: pure Python. No torch, grpc, asyncio, clock or logging; time and ids are arguments."""
