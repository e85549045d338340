/**
 * Has V8 collect all garbage and give the memory back to the system. By itself it does so only while a program goes on
 * making garbage: one that rests keeps what its last work took.
 *
 * The program stands still meanwhile, for some 0.1 s, and most of what V8 compiled goes too, so that what runs next is slow
 * at first. Call it only where nothing that is in a hurry can follow.
 */
export async function giveBackMemory(): Promise<void> {
  // Node.js may be built without it.
  if (!process.features.inspector) return
  const { Session } = await import('node:inspector/promises')
  const session = new Session()
  session.connect()
  // Other than `gc()` it shrinks the heap too.
  await session.post('HeapProfiler.collectGarbage')
  session.disconnect()
}
