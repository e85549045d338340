import { useEffect, useState } from 'preact/hooks'
import type { FoundRepository, PullReply, SearchReply } from '../../../../core/contracts/native-records.ts'
import { attempt, IconButton, openDialog } from '../parts/controls.tsx'
import { formatAgo, formatDuration, formatNumber, formatShare, formatSize } from '../parts/formats.ts'
import { Button, Choices, Form } from '../parts/forms.tsx'
import { Card, Fault, More } from '../parts/layout.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { ask } from '../state/api.ts'
import { linkTo } from '../state/route.ts'
import { pulls } from '../state/server-state.ts'
import { fill, labelFor, texts } from '../texts/texts.ts'
import { Fit } from './memory-fit.tsx'
import { Recommended } from './recommended.tsx'
import { RepositoryCard } from './repository-card.tsx'

/** Unfinished downloads, whichever client started them. */
export function Downloads() {
  const t = texts.value
  if (pulls.value.length === 0) return null
  return (
    <section aria-label={t.downloads}>
      <ul class="plain-list">
        {pulls.value.map(pull => (
          <PullLine key={pull.id} pull={pull} />
        ))}
      </ul>
    </section>
  )
}

/** Recommends models, and searches the hubs. @param wanted a model to show first */
export function GetModels({ wanted }: { wanted: string | undefined }) {
  const t = texts.value
  /** The last search. Its number allows repeating a search with the same words. */
  const [search, setSearch] = useState({ words: '', number: 0 })
  const choose = (model: string) => openDialog(model, close => <RepositoryCard reference={model} onDone={close} />)
  useEffect(() => {
    if (wanted !== undefined) choose(wanted)
  }, [])
  return (
    <>
      <Form
        class="row search-line"
        onSubmit={text => {
          const words = text('words')
          // A name or URL is shown without a search.
          if (/^\S+\/\S+$/.test(words)) choose(words)
          else if (words !== '') setSearch({ words, number: search.number + 1 })
        }}
      >
        <input
          type="search"
          name="words"
          required
          class="field grow"
          aria-label={t.searchHubs}
          placeholder={t.searchHubsHint}
          defaultValue={wanted}
        />
        <Button kind="main" type="submit" text={t.search} />
      </Form>
      {search.words === '' ? (
        <Recommended onChoose={choose} />
      ) : (
        <Found key={search.number} words={search.words} onChoose={choose} />
      )}
    </>
  )
}

type Order = 'popular' | 'newest' | 'smallest'

/** Orders the results of a search. Unknown values come last. */
const ORDERS: Record<Order, (a: FoundRepository, b: FoundRepository) => number> = {
  popular: (a, b) => (b.downloads ?? -1) - (a.downloads ?? -1),
  newest: (a, b) => (b.updated_at ?? '').localeCompare(a.updated_at ?? ''),
  smallest: (a, b) => (a.size ?? Infinity) - (b.size ?? Infinity)
}

/** How many results per hub are requested at first, and after each click on "more". */
const LIMITS = [10, 30, 50]

function Found({ words, onChoose }: { words: string; onChoose: (model: string) => void }) {
  const t = texts.value
  const [page, setPage] = useState(0)
  const [order, setOrder] = useState<Order>('popular')
  const [onlyFitting, setOnlyFitting] = useState(false)
  const limit = LIMITS[page]!
  const { reply, fault } = useReply<SearchReply>(`api/search?q=${encodeURIComponent(words)}&limit=${limit}`)
  if (fault) return <Fault text={fault.message} isAnnounced />
  if (!reply) return <p class="quiet">{fill(t.searching, { words })}</p>
  const shown = reply.models
    .filter(({ memory }) => !onlyFitting || memory === undefined || memory.fits)
    .sort(ORDERS[order])
  return (
    <>
      {reply.errors.map(({ hub, error }) => (
        <Fault key={hub} text={`${hub}: ${error}`} />
      ))}
      {reply.models.length === 0 && <p class="quiet">{fill(t.nothingFound, { words })}</p>}
      {reply.models.length > 1 && (
        <Choices label={t.order} names={t.orders} chosen={order} onChoose={setOrder}>
          <Button pressed={onlyFitting} onClick={() => setOnlyFitting(!onlyFitting)} text={t.onlyFitting} />
        </Choices>
      )}
      <ul class="plain-list">
        {shown.map(found => (
          <FoundLine key={`${found.hub} ${found.id}`} found={found} onChoose={() => onChoose(found.model)} />
        ))}
      </ul>
      {page < LIMITS.length - 1 && reply.models.length >= limit && (
        <Button onClick={() => setPage(page + 1)} text={t.moreResults} />
      )}
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
