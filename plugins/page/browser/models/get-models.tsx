import { useRef, useState } from 'preact/hooks'
import type { FoundRepository, PlanReply, PullReply, SearchReply } from '../../../../core/contracts/native-records.ts'
import { attempt, Dialog, IconButton, notify } from '../parts/controls.tsx'
import { formatAgo, formatDuration, formatNumber, formatShare, formatSize } from '../parts/formats.ts'
import { Actions, Button, Form } from '../parts/forms.tsx'
import { Card, Fault, More } from '../parts/layout.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { ask } from '../state/api.ts'
import { linkTo } from '../state/route.ts'
import { models, pools, pulls } from '../state/server-state.ts'
import { fill, labelFor, texts } from '../texts/texts.ts'

/** Searches the hubs, and lists the running downloads. @param wanted a model to show first */
export function GetModels({ wanted }: { wanted: string | undefined }) {
  const t = texts.value
  const [words, setWords] = useState(wanted ?? '')
  /** The last search. Its number allows repeating a search with the same words. */
  const [search, setSearch] = useState({ words: '', number: 0 })
  const [chosen, setChosen] = useState(wanted)
  const given = words.trim()
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
      <Form
        class="row search-line"
        onSubmit={() => {
          // A name or URL is shown without a search.
          if (/^\S+\/\S+$/.test(given)) setChosen(given)
          else if (given !== '') setSearch({ words: given, number: search.number + 1 })
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
        <Button kind="main" type="submit" disabled={given === ''} text={t.search} />
      </Form>
      {search.words !== '' && <Found key={search.number} words={search.words} onChoose={setChosen} />}
      {chosen !== undefined && (
        <Dialog title={chosen} onClose={() => setChosen(undefined)}>
          <Choice reference={chosen} onDone={() => setChosen(undefined)} />
        </Dialog>
      )}
    </>
  )
}

function Found({ words, onChoose }: { words: string; onChoose: (model: string) => void }) {
  const t = texts.value
  const { reply, fault } = useReply<SearchReply>(`api/search?q=${encodeURIComponent(words)}`)
  if (fault) return <Fault text={fault.message} isAnnounced />
  if (!reply) return <p class="quiet">{fill(t.searching, { words })}</p>
  return (
    <>
      {reply.errors.map(({ hub, error }) => (
        <Fault key={hub} text={`${hub}: ${error}`} />
      ))}
      {reply.models.length === 0 && <p class="quiet">{fill(t.nothingFound, { words })}</p>}
      <ul class="plain-list">
        {reply.models.map(found => (
          <FoundLine key={`${found.hub} ${found.id}`} found={found} onChoose={() => onChoose(found.model)} />
        ))}
      </ul>
    </>
  )
}

function FoundLine({ found, onChoose }: { found: FoundRepository; onChoose: () => void }) {
  const t = texts.value
  const { size, variant = '', downloads, updated_at, memory } = found
  const facts = [
    size !== undefined && `${variant} ${formatSize(size)}`.trim(),
    downloads !== undefined && fill(t.downloadCount, { count: formatNumber(downloads) }),
    updated_at !== undefined && formatAgo(Date.parse(updated_at)),
    found.license,
    found.hub
  ]
  const actions = (
    <>
      {found.gated && <span class="chip">{t.gated}</span>}
      {memory && <Fit required={memory.required} available={memory.available} />}
      <Button onClick={onChoose} text={t.look} />
    </>
  )
  return <Card title={found.id} facts={facts} fault={found.problem} actions={actions} />
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
  const [variant, setVariant] = useState('')
  const source = variant ? `${withoutVariant(reference)}:${variant}` : reference
  const { reply: plan, fault } = useReply<PlanReply>('api/pull', { model: source, dry_run: true })
  /** Sizes by label, in the order in which the server first listed them, so that choosing one does not reorder them. */
  const { current: choices } = useRef(new Map<string, number>())
  const listed = [
    ...(plan ? [{ label: plan.label, size: plan.size }, ...plan.choices] : []),
    // The name may match several models of the repository.
    ...((fault?.body.choices ?? []) as PlanReply['choices'])
  ]
  for (const { label, size } of listed) if (!choices.has(label)) choices.set(label, size)
  const variants = (
    <fieldset class="choices">
      <legend>{plan ? t.variants : t.severalModels}</legend>
      {[...choices].map(([label, size]) => (
        <label key={label} class="choice">
          <input type="radio" name="variant" checked={label === plan?.label} onChange={() => setVariant(label)} />
          <span class="grow">{label}</span>
          <small>{formatSize(size)}</small>
          {plan && <Fit required={estimate(size, plan)} available={plan.memory.available} />}
        </label>
      ))}
    </fieldset>
  )
  if (!plan && choices.size > 0) return variants
  if (!plan) return fault ? <Fault text={fault.message} /> : <p class="quiet">{t.loading}</p>
  const { disk, model, repository } = plan
  const isHere = plan.present || models.value.some(({ name }) => name.toLowerCase() === model.toLowerCase())
  const download = async () => {
    const begun = await attempt(() => ask('POST', 'api/pull', { body: { model: source, detach: true } }))
    if (!begun) return
    notify(fill(t.downloadBegun, { model }))
    onDone()
  }
  return (
    <>
      <p class="quiet">
        <a href={repository.address} target="_blank" rel="noreferrer noopener">
          {repository.address}
        </a>
      </p>
      {variants}
      <p>{plan.reason}</p>
      {plan.warnings.map(warning => (
        <Fault key={warning} text={warning} />
      ))}
      {!disk.fits && (
        <Fault
          text={fill(t.diskFull, { required: formatSize(disk.required), available: formatSize(disk.available) })}
        />
      )}
      <Fault text={fault?.message} />
      <Actions>
        {isHere && <span class="chip is-good">{t.isHere}</span>}
        <Button
          kind="main"
          disabled={!disk.fits || plan.present}
          onClick={download}
          text={fill(t.downloadOf, { size: formatSize(plan.size) })}
        />
      </Actions>
    </>
  )
}

/** Estimates the memory of a variant from the overhead of the chosen one. */
const estimate = (size: number, { size: known, memory }: PlanReply) => size + Math.max(0, memory.required - known)

/** Removes the variant from a reference: `hf:owner/name:Q4_K_M` becomes `hf:owner/name`. */
const withoutVariant = (reference: string) => reference.replace(/(\/[^/:@]+):[^/:@]+/, '$1')

function PullLine({ pull }: { pull: PullReply }) {
  const t = texts.value
  const { id, model, completed, total, speed, state, reason, files } = pull
  const act = (action: string) => attempt(() => ask('POST', `api/pulls/${action}`, { body: { id } }))
  const isDownloading = state === 'downloading'
  const isMoving = isDownloading || state === 'waiting' || state === 'storing'
  const facts = [
    labelFor(t.pullStates, state),
    formatShare(completed, total),
    isDownloading && fill(t.perSecond, { size: formatSize(speed) }),
    isDownloading && speed > 0 && fill(t.timeLeft, { time: formatDuration((1000 * (total - completed)) / speed) })
  ]
  const actions = (
    <>
      <IconButton
        icon={isMoving ? 'pause' : 'play'}
        label={isMoving ? t.pause : t.resume}
        onClick={() => act(isMoving ? 'pause' : 'resume')}
      />
      <IconButton icon="close" label={t.cancelDownload} onClick={() => act('cancel')} />
    </>
  )
  return (
    <Card title={model} facts={facts} actions={actions}>
      <progress max={total || 1} value={completed} aria-label={model} />
      {reason && <p class={state === 'failed' ? 'is-error' : 'quiet'}>{reason}</p>}
      {files.length > 1 && (
        <More title={t.files}>
          <ul class="plain-list">
            {files.map(({ path, completed, total }) => (
              <li key={path}>
                {path} <small>{formatShare(completed, total)}</small>
              </li>
            ))}
          </ul>
        </More>
      )}
      {state === 'failed' && (
        <a class="button" href={linkTo('models', 'get', model)}>
          {t.look}
        </a>
      )}
    </Card>
  )
}
