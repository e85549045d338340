import { setTimeout as sleep } from 'node:timers/promises'
import { collectDefaultMetrics, Registry } from 'prom-client'
import { requestMetrics } from './request-metrics.ts'
import { LabelValues } from './series.ts'
import { modelMetrics, type ServerState, stateMetrics } from './server-metrics.ts'

/** How often a native timer measures the delay of the event loop, in milliseconds. */
const LAG_PRECISION = 20

export function createMetrics(readState: () => Promise<ServerState>) {
  const registry = new Registry()
  const values = new LabelValues()
  const showState = stateMetrics(registry, values)
  let scraping: Promise<string> | undefined
  let watching: Promise<void> | undefined

  /** Starts measuring the event loop and garbage collection. Only servers that are scraped pay for it. */
  async function watchProcess(): Promise<void> {
    collectDefaultMetrics({ register: registry, eventLoopMonitoringPrecision: LAG_PRECISION })
    // The minimum is valid only after the second tick. One longer sleep would not do: when the machine is busy, overdue
    // timers all fire in the same pass of the event loop, before that tick.
    for (let looks = 0; looks < 3; looks++) await sleep(LAG_PRECISION)
  }

  async function scrape(): Promise<string> {
    try {
      watching ??= watchProcess()
      await watching
      showState(await readState())
      return await registry.metrics()
    } finally {
      scraping = undefined
    }
  }

  return {
    contentType: registry.contentType,
    observe: requestMetrics(registry, values),
    hooks: modelMetrics(registry, values),
    /** All metrics in the Prometheus format. Concurrent callers get the same text. */
    text(): Promise<string> {
      scraping ??= scrape()
      return scraping
    }
  }
}
