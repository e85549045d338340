import type { EngineAddress } from './address.ts'
import { type HangWatchDeps, processorTime, watchForHang } from './hang-watch.ts'
import { createUpstream } from './upstream.ts'

/** Watches a real engine for hanging: asks `/health` apart from its requests, and reads its processor time. */
export function watchEngine({
  address,
  pid,
  ...watch
}: Pick<HangWatchDeps, 'limit' | 'activity' | 'onHung'> & {
  address: EngineAddress
  pid: number | undefined
}): () => void {
  const probe = createUpstream(address, { alive: () => false, explain: async error => error })
  const endWatch = watchForHang({
    ...watch,
    async healthy(signal) {
      const { body } = await probe.request({ method: 'GET', path: '/health', signal })
      body.destroy()
      return true
    },
    processorTime: () => processorTime(pid)
  })
  return () => {
    endWatch()
    probe.cut(new Error('The engine is not watched any more.'))
  }
}
