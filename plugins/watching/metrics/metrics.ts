import { setTimeout as sleep } from 'node:timers/promises'
import { collectDefaultMetrics, Registry } from 'prom-client'
import type { PluginHooks } from '../../../core/contracts/hooks.ts'
import type { RequestObserver } from '../../../core/http/request-record.ts'
import { LabelValues } from './label-values.ts'
import { requestMetrics } from './request-metrics.ts'
import { modelMetrics, type Sources, stateMetrics } from './server-metrics.ts'

/** How often the event loop's delay is looked at, by a timer outside of JavaScript (milliseconds). */
const LAG_PRECISION = 20

export interface Metrics {
  readonly contentType: string
  readonly observe: RequestObserver
  readonly hooks: PluginHooks
  /** All metrics as Prometheus reads them. Those who ask at once get the same text. */
  text(): Promise<string>
}

/** All metrics of this server, in a registry of its own. */
export function createMetrics(sources: Sources): Metrics {
  const registry = new Registry()
  const values = new LabelValues()
  const readState = stateMetrics(registry, values, sources)
  let scraping: Promise<string> | undefined
  let watching: Promise<void> | undefined

  /** A timer and an observer of V8's collections of garbage, which a server that nobody scrapes goes without. */
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
      await readState()
      return await registry.metrics()
    } finally {
      scraping = undefined
    }
  }

  return {
    contentType: registry.contentType,
    observe: requestMetrics(registry, values),
    hooks: modelMetrics(registry, values),
    text() {
      scraping ??= scrape()
      return scraping
    }
  }
}
