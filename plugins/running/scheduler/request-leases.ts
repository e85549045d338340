import type { FastifyBaseLogger } from 'fastify'
import { getRequestLimits } from '../../../core/answers/request-limits.ts'
import type { Engine } from '../../../core/contracts/engines.ts'
import type { Lease, LeaseRequest, Scheduler } from '../../../core/contracts/leases.ts'
import { CorralError, type ErrorCode, errorCodes } from '../../../core/errors.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import { merged } from '../../../core/system/collections.ts'
import { clampOptions, findClamped, toKeepAlive } from './model-configuration.ts'
import { engineKey, type SchedulerCore } from './scheduler-core.ts'
import { hasFreeSlots } from './scheduler-state.ts'

const MAX_LOGGED_CLAMPS = 1000

/** Leases engines to requests: each lease is a `request` event, and its release a `leave` event. */
export function createLeases(core: SchedulerCore) {
  const { catalog, engines, config, log, models, state, requests } = core
  /** Clamped options that have already been logged, since programs send the same options with each request. */
  const loggedClamps = new Set<string>()
  let lastId = 0

  function logClamped(model: string, client: string, given: Partial<LoadOptions>, clamped: Partial<LoadOptions>): void {
    for (const [option, effective] of Object.entries(clamped)) {
      const known = `${model} ${option} ${client}`
      const level = loggedClamps.has(known) ? 'debug' : 'warn'
      if (loggedClamps.size >= MAX_LOGGED_CLAMPS) loggedClamps.clear()
      loggedClamps.add(known)
      const requested = given[option as keyof LoadOptions]
      log[level]({ model, option, requested, effective }, `${option} was reduced to its limit`)
    }
  }

  async function leaseEngine(request: LeaseRequest): Promise<Lease> {
    request.signal.throwIfAborted()
    const variant = catalog.get(request.model)
    const mode = request.mode ?? 'chat'
    const provider = engines.requireProvider(variant, mode)
    const settings = models.getSettings(variant)
    const asker = { mode, owner: request.owner }
    const relevant = provider.loadOptions?.(variant, request.options, settings.load, asker) ?? request.options
    const options = clampOptions(relevant, variant, getRequestLimits(config, variant, request.bounds ? request : {}))
    const clamped = findClamped(relevant, options)
    if (clamped) {
      request.onClamped?.(clamped)
      logClamped(variant.publicName, request.turn ?? '', relevant, clamped)
    }
    const record = core.getRecord(variant, mode)
    const { key } = record
    const id = ++lastId
    const began = performance.now()
    return await new Promise<Lease>((resolve, reject) => {
      const controller = new AbortController()
      const { signal } = controller
      let ended = false
      // Assigned instead of a getter: for objects with getters V8 creates a hidden class each, which keeps the whole
      // request alive until the old generation is collected.
      let leased: { -readonly [Field in keyof Lease]: Lease[Field] }
      const finish = (rests = false) => {
        if (ended) return
        ended = true
        request.signal.removeEventListener('abort', onAbort)
        requests.delete(id)
        core.dispatch({ type: 'leave', id, key, rests })
      }
      const rest = () => {
        finish(true)
        return () => core.dispatch({ type: 'leave', id, key })
      }
      const letOthers = async () => {
        signal.throwIfAborted()
        const pending = requests.get(id)
        if (!pending || !state.engines.get(key)?.queue.length) return
        const { refuse } = pending
        await new Promise<void>((granted, refused) => {
          const onRevoked = () => refused(signal.reason)
          signal.addEventListener('abort', onRevoked)
          Object.assign(pending, {
            grant: (next: Engine) => {
              leased.engine = next
              signal.removeEventListener('abort', onRevoked)
              granted()
            },
            refuse: (error: unknown) => {
              refuse(error)
              signal.removeEventListener('abort', onRevoked)
              refused(error)
            }
          })
          core.dispatch({ type: 'yield', id, key })
        })
      }
      const onAbort = () => {
        controller.abort(request.signal.reason)
        reject(request.signal.reason)
        finish()
      }
      request.signal.addEventListener('abort', onAbort)
      requests.set(id, {
        record,
        onProgress: request.onProgress,
        grant: engine => {
          requests.get(id)!.onProgress = undefined
          const { variant, loadedAt } = record
          const loadDuration = Math.max(0, loadedAt - began)
          leased = { engine, variant, signal, loadDuration, letOthers, rest, release: () => finish() }
          resolve(leased)
        },
        refuse: error => {
          ended = true
          request.signal.removeEventListener('abort', onAbort)
          requests.delete(id)
          reject(error)
        },
        revoke: error => controller.abort(error)
      })
      if (record.progress) request.onProgress?.(record.progress)
      core.dispatch({
        type: 'request',
        id,
        key,
        clientId: request.turn ?? '',
        ...models.getFacts(variant, settings, provider),
        options,
        fewerSlots: request.fewerSlots,
        loadOnly: request.loadOnly ?? false,
        slots: request.slots ?? 1,
        background: request.idle ?? false,
        continues: request.continues,
        keepAlive: toKeepAlive(request.keepAlive)
      })
      const phase = state.engines.get(key)?.phase.name
      if (phase === 'ready' || phase === 'draining') {
        requests.get(id)?.onProgress?.({ phase: phase === 'ready' ? 'queued' : phase, subject: '' })
      }
    })
  }

  /** Leases the engine of a linked machine if the request would have to wait or to load the model here. */
  function leaseElsewhere(request: LeaseRequest): Lease | undefined {
    const { loadOnly, idle, continues, options, slots = 1, signal } = request
    // With other options, the model would have to be loaded there too.
    if (loadOnly || idle || continues || Object.keys(options).length > 0) return undefined
    const variant = catalog.get(request.model)
    const mode = request.mode ?? 'chat'
    const engine = engines.standIn(variant, mode, slots)
    if (!engine || hasFreeSlots(state.engines.get(engineKey(variant, mode)), slots)) return undefined
    lastId++
    const nothing = () => {}
    const rest = { letOthers: async () => signal.throwIfAborted(), rest: () => nothing, release: nothing }
    return { engine, variant, signal, loadDuration: 0, isElsewhere: true, ...rest }
  }

  return {
    /** @param here whether only this machine may answer, because another one has failed */
    async lease(request: LeaseRequest, here = false): Promise<Lease> {
      const leased = (here ? undefined : leaseElsewhere(request)) ?? (await leaseEngine(request))
      if (!leased.engine.forRequest) return leased
      try {
        const engine = await leased.engine.forRequest(request, leased.signal)
        return merged(leased, { engine })
      } catch (error) {
        leased.release()
        throw error
      }
    },

    count: () => lastId
  }
}

/** Maximum number of engines for one request, including engines that ended before it was sent. */
const MAX_ATTEMPTS = 4

/** Failures that another attempt may not have. */
const ENGINE_LOST: readonly ErrorCode[] = errorCodes('engine_crashed engine_unreachable')

/**
 * Returns `withLease`, which leases an engine, uses it and releases it. If the engine crashes before anything was sent
 * to the client, the request is tried once more on a fresh engine. If a linked machine fails, this one answers. A
 * background request that lost its slot to a client waits for another one.
 */
export function retryOnFreshEngine(
  lease: ReturnType<typeof createLeases>['lease'],
  log: FastifyBaseLogger
): Scheduler['withLease'] {
  return async (request, use) => {
    let tried = 0
    let here = false
    for (let attempt = 1; ; attempt++) {
      const leased = await lease(request, here)
      try {
        return await use(leased)
      } catch (error) {
        const mayRetry = !request.signal.aborted && (request.mayRetry?.() ?? true)
        if (leased.isElsewhere && mayRetry) {
          here = true
          continue
        }
        if (isDisplaced(leased) && mayRetry) {
          attempt = 0
          continue
        }
        const crashed = error instanceof CorralError && ENGINE_LOST.includes(error.code) && error.retryable
        // A request that still waited inside the engine has not been tried.
        if (!crashed || error.details?.sent !== false) tried++
        if (!crashed || tried > 1 || attempt >= MAX_ATTEMPTS || !mayRetry) throw error
        const { publicName: model } = leased.variant
        log.warn({ model, reason: error.message }, 'the engine did not answer, so a fresh one gets the request')
      } finally {
        leased.release()
      }
    }
  }
}

function isDisplaced({ signal: { aborted, reason } }: Lease): boolean {
  return aborted && reason instanceof CorralError && reason.details?.displaced === true
}
