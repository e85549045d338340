import { useEffect, useState } from 'preact/hooks'
import type { FoundRepository, PlanReply, PullReply, SearchReply } from '../../../../core/contracts/native-records.ts'
import { attempt, Dialog, IconButton, notify } from '../parts/controls.tsx'
import { formatAgo, formatDuration, formatNumber, formatSize } from '../parts/formats.ts'
import { type ApiError, ask } from '../state/api.ts'
import { linkTo } from '../state/route.ts'
import { models, pools, pulls } from '../state/server-state.ts'
import { fill, labelFor, texts } from '../texts/texts.ts'

/** Searches the hubs, and lists the running downloads. @param wanted a model to show first */
export function GetModels({ wanted }: { wanted: string | undefined }) {
  const t = texts.value
  const [words, setWords] = useState(wanted ?? '')
  const [asked, setAsked] = useState('')
  const [reply, setReply] = useState<SearchReply | undefined>(undefined)
  const [fault, setFault] = useState('')
  const [chosen, setChosen] = useState(wanted)
  const search = async () => {
    const query = words.trim()
    if (query === '') return
    setAsked(query)
    setFault('')
    setReply(undefined)
    try {
      setReply(await ask<SearchReply>('GET', `api/search?q=${encodeURIComponent(query)}`))
    } catch (error) {
      setFault((error as ApiError).message)
    }
  }
  return (
    <>
      {pulls.value.length > 0 && (
        <section aria-label={t.downloads}>
          <ul class="plain-list">
            {pulls.value.map(pull => (
              <PullLine key={pull.id} pull={pull} />
            ))}
          </ul>
        </section>
      )}
      <form
        class="row search-line"
        onSubmit={event => {
          event.preventDefault()
          // A name or URL is shown without a search.
          if (/^\S+\/\S+$/.test(words.trim())) setChosen(words.trim())
          else void search()
        }}
      >
        <input
          type="search"
          class="field grow"
          aria-label={t.searchHubs}
          placeholder={t.searchHubsHint}
          value={words}
          onInput={event => setWords(event.currentTarget.value)}
        />
        <button type="submit" class="button is-main" disabled={words.trim() === ''}>
          {t.search}
        </button>
      </form>
      {fault && (
        <p class="is-error" role="alert">
          {fault}
        </p>
      )}
      {asked && !reply && !fault && <p class="quiet">{fill(t.searching, { words: asked })}</p>}
      {reply && (
        <>
          {reply.errors.map(({ hub, error }) => (
            <p key={hub} class="is-error">
              {hub}: {error}
            </p>
          ))}
          {reply.models.length === 0 && <p class="quiet">{fill(t.nothingFound, { words: asked })}</p>}
          <ul class="plain-list">
            {reply.models.map(found => (
              <FoundLine key={`${found.hub} ${found.id}`} found={found} onChoose={() => setChosen(found.model)} />
            ))}
          </ul>
        </>
      )}
      {chosen !== undefined && (
        <Dialog title={chosen} onClose={() => setChosen(undefined)}>
          <Choice reference={chosen} onDone={() => setChosen(undefined)} />
        </Dialog>
      )}
    </>
  )
}

function FoundLine({ found, onChoose }: { found: FoundRepository; onChoose: () => void }) {
  const t = texts.value
  const facts = [
    found.size === undefined ? undefined : `${found.variant ?? ''} ${formatSize(found.size)}`.trim(),
    found.downloads === undefined ? undefined : fill(t.downloadCount, { count: formatNumber(found.downloads) }),
    found.updated_at === undefined ? undefined : formatAgo(Date.parse(found.updated_at)),
    found.license,
    found.hub
  ]
  return (
    <li class="card">
      <div class="row">
        <div class="grow">
          <h2>{found.id}</h2>
          <p class="quiet">{facts.filter(Boolean).join(' · ')}</p>
          {found.problem && <p class="is-error">{found.problem}</p>}
        </div>
        {found.gated && <span class="chip">{t.gated}</span>}
        {found.memory && <Fit required={found.memory.required} available={found.memory.available} />}
        <button type="button" class="button" onClick={onChoose}>
          {t.look}
        </button>
      </div>
    </li>
  )
}

/** Whether a model fits into memory, alone or beside the loaded models. */
function Fit({ required, available }: { required: number; available: number }) {
  const t = texts.value
  const reserved = pools.value.reduce((sum, pool) => sum + pool.reserved, 0)
  const [text, kind] =
    required > available
      ? [fill(t.tooLarge, { required: formatSize(required), available: formatSize(available) }), 'is-error']
      : required + reserved > available
        ? [t.fitsAlone, 'is-accent']
        : [t.fits, 'is-good']
  return <span class={`chip ${kind}`}>{text}</span>
}

/** The variants in a repository, and the download of one. */
function Choice({ reference, onDone }: { reference: string; onDone: () => void }) {
  const t = texts.value
  const [plan, setPlan] = useState<PlanReply | undefined>(undefined)
  const [fault, setFault] = useState('')
  const [variant, setVariant] = useState('')
  /** In the order in which the server first listed them, so that choosing one does not reorder them. */
  const [choices, setChoices] = useState<PlanReply['choices']>([])
  const addChoices = (more: PlanReply['choices']) =>
    setChoices(known => [...known, ...more.filter(({ label }) => !known.some(other => other.label === label))])
  const source = variant ? `${withoutVariant(reference)}:${variant}` : reference
  useEffect(() => {
    setFault('')
    const controller = new AbortController()
    ask<PlanReply>('POST', 'api/pull', { body: { model: source, dry_run: true }, signal: controller.signal }).then(
      plan => {
        setPlan(plan)
        addChoices([{ label: plan.label, size: plan.size }, ...plan.choices])
      },
      (error: ApiError) => {
        if (controller.signal.aborted) return
        setFault(error.message)
        // The name may match several models of the repository.
        if (Array.isArray(error.body.choices)) addChoices(error.body.choices as PlanReply['choices'])
      }
    )
    return () => controller.abort()
  }, [source])
  const variants = (
    <fieldset class="choices">
      <legend>{plan ? t.variants : t.severalModels}</legend>
      {choices.map(({ label, size }) => (
        <label key={label} class="choice">
          <input type="radio" name="variant" checked={label === plan?.label} onChange={() => setVariant(label)} />
          <span class="grow">{label}</span>
          <small>{formatSize(size)}</small>
          {plan && <Fit required={estimate(size, plan)} available={plan.memory.available} />}
        </label>
      ))}
    </fieldset>
  )
  if (!plan && choices.length > 0) return variants
  if (fault && !plan) return <p class="is-error">{fault}</p>
  if (!plan) return <p class="quiet">{t.loading}</p>
  const isHere = plan.present || models.value.some(({ name }) => name.toLowerCase() === plan.model.toLowerCase())
  return (
    <>
      <p class="quiet">
        <a href={plan.repository.address} target="_blank" rel="noreferrer noopener">
          {plan.repository.address}
        </a>
      </p>
      {variants}
      <p>{plan.reason}</p>
      {plan.warnings.map(warning => (
        <p key={warning} class="is-error">
          {warning}
        </p>
      ))}
      {!plan.disk.fits && (
        <p class="is-error">
          {fill(t.diskFull, { required: formatSize(plan.disk.required), available: formatSize(plan.disk.available) })}
        </p>
      )}
      {fault && <p class="is-error">{fault}</p>}
      <footer class="dialog-foot">
        {isHere && <span class="chip is-good">{t.isHere}</span>}
        <button
          type="button"
          class="button is-main"
          disabled={!plan.disk.fits || plan.present}
          onClick={async () => {
            const begun = await attempt(() => ask('POST', 'api/pull', { body: { model: source, detach: true } }))
            if (!begun) return
            notify(fill(t.downloadBegun, { model: plan.model }))
            onDone()
          }}
        >
          {fill(t.downloadOf, { size: formatSize(plan.size) })}
        </button>
      </footer>
    </>
  )
}

/** Estimates the memory of a variant from the overhead of the chosen one. */
const estimate = (size: number, { size: known, memory }: PlanReply) => size + Math.max(0, memory.required - known)

/** Removes the variant from a reference: `hf:owner/name:Q4_K_M` becomes `hf:owner/name`. */
const withoutVariant = (reference: string) => reference.replace(/(\/[^/:@]+):[^/:@]+/, '$1')

/** A download with its progress and controls. */
function PullLine({ pull }: { pull: PullReply }) {
  const t = texts.value
  const act = (action: string) => void attempt(() => ask('POST', `api/pulls/${action}`, { body: { id: pull.id } }))
  const { completed, total, speed, state } = pull
  const left = speed > 0 ? formatDuration((1000 * (total - completed)) / speed) : undefined
  const isMoving = state === 'downloading' || state === 'waiting' || state === 'storing'
  const facts = [
    labelFor(t.pullStates, state),
    fill(t.memoryOf, { used: formatSize(completed), whole: formatSize(total) }),
    state === 'downloading' ? fill(t.perSecond, { size: formatSize(speed) }) : undefined,
    state === 'downloading' && left ? fill(t.timeLeft, { time: left }) : undefined
  ]
  return (
    <li class="card">
      <div class="row">
        <div class="grow">
          <h2>{pull.model}</h2>
          <p class="quiet">{facts.filter(Boolean).join(' · ')}</p>
        </div>
        {isMoving ? (
          <IconButton icon="pause" label={t.pause} onClick={() => act('pause')} />
        ) : (
          <IconButton icon="play" label={t.resume} onClick={() => act('resume')} />
        )}
        <IconButton icon="close" label={t.cancelDownload} onClick={() => act('cancel')} />
      </div>
      <progress max={total || 1} value={completed} aria-label={pull.model} />
      {pull.reason && <p class={state === 'failed' ? 'is-error' : 'quiet'}>{pull.reason}</p>}
      {pull.files.length > 1 && (
        <details>
          <summary>{t.files}</summary>
          <ul class="plain-list">
            {pull.files.map(({ path, completed, total }) => (
              <li key={path}>
                {path} <small>{fill(t.memoryOf, { used: formatSize(completed), whole: formatSize(total) })}</small>
              </li>
            ))}
          </ul>
        </details>
      )}
      {state === 'failed' && (
        <a class="button" href={linkTo('models', 'get', pull.model)}>
          {t.look}
        </a>
      )}
    </li>
  )
}
