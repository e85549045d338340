import type { ComponentChild } from 'preact'
import { useState } from 'preact/hooks'
import { statusText } from '../chat/status-text.ts'
import { attempt, ConfirmDialog, Dialog, Menu, MenuItem, notify, SearchField } from '../parts/controls.tsx'
import { formatAgo, formatNumber, formatSize } from '../parts/formats.ts'
import { Icon } from '../parts/icons.tsx'
import { InstallConverter } from '../parts/install-converter.tsx'
import { ask } from '../state/api.ts'
import { may } from '../state/me.ts'
import { lastModel } from '../state/preferences.ts'
import { go, linkTo } from '../state/route.ts'
import { conversions, engines, models, pools } from '../state/server-state.ts'
import { fill, labelFor, texts } from '../texts/texts.ts'
import { GetModels } from './get-models.tsx'
import { ModelDetails } from './model-details.tsx'
import { ModelSettingsForm } from './model-settings.tsx'

type ModelState = (typeof models.value)[number]
type EngineState = (typeof engines.value)[number]

/** The installed models, the memory they use, and the hubs. */
export function ModelsView({ path }: { path: string[] }) {
  const t = texts.value
  const [tab = 'here'] = path
  return (
    <main class="view page-view">
      <div class="page-column">
        <header class="page-head">
          <h1>{t.models}</h1>
        </header>
        <nav class="tabs" aria-label={t.models}>
          <a href={linkTo('models')} aria-current={tab === 'here' ? 'page' : undefined}>
            {t.modelsHere}
          </a>
          {may('operator') && (
            <a href={linkTo('models', 'get')} aria-current={tab === 'get' ? 'page' : undefined}>
              {t.getModels}
            </a>
          )}
        </nav>
        {tab === 'get' && may('operator') ? <GetModels key={path[1]} wanted={path[1]} /> : <ModelsHere />}
      </div>
    </main>
  )
}

function ModelsHere() {
  const t = texts.value
  const [wanted, setWanted] = useState('')
  const all = models.value
  const found = all.filter(({ name }) => name.toLowerCase().includes(wanted.toLowerCase()))
  return (
    <>
      <Memory />
      {all.length > 8 && <SearchField label={t.findModel} value={wanted} onInput={setWanted} />}
      <ul class="plain-list">
        {found.map(model => (
          <ModelLine key={model.name} model={model} />
        ))}
      </ul>
      {all.length === 0 && (
        <p class="quiet">
          {t.noModels} {may('operator') && <a href={linkTo('models', 'get')}>{t.getModel}</a>}
        </p>
      )}
    </>
  )
}

/** Number of colours in a memory bar. */
const SHADES = 4

/** The memory of each pool that models use. */
function Memory() {
  const t = texts.value
  if (pools.value.length === 0) return null
  return (
    <section aria-label={t.memory}>
      {pools.value.map(({ pool, reserved, budget }) => {
        const parts = engines.value.flatMap(engine => {
          const size = engine.state === 'loaded' ? (engine.memory?.[pool] ?? 0) : 0
          return size > 0 ? [{ name: engine.name, size }] : []
        })
        const known = parts.reduce((sum, { size }) => sum + size, 0)
        const whole = budget ?? Math.max(reserved, known, 1)
        const label =
          budget === undefined
            ? formatSize(reserved)
            : fill(t.memoryOf, { used: formatSize(reserved), whole: formatSize(budget) })
        const name = pool === 'host' ? t.hostMemory : pool
        return (
          <div class="memory" key={pool}>
            <div class="row">
              <span class="grow">{name}</span>
              <span class="quiet">{label}</span>
            </div>
            <div class="bar" role="img" aria-label={`${name}: ${label}`}>
              {parts.map(({ name, size }, index) => (
                <span
                  key={name}
                  class={`shade-${index % SHADES}`}
                  title={`${name}: ${formatSize(size)}`}
                  style={{ width: `${Math.min(100, (100 * size) / whole)}%` }}
                />
              ))}
              {reserved > known && (
                <span
                  class="shade-reserved"
                  style={{ width: `${Math.min(100, (100 * (reserved - known)) / whole)}%` }}
                />
              )}
            </div>
          </div>
        )
      })}
    </section>
  )
}

function ModelLine({ model }: { model: ModelState }) {
  const t = texts.value
  const [open, setOpen] = useState<'' | 'details' | 'settings' | 'deleting'>('')
  const own = engines.value.filter(({ name }) => name.toLowerCase() === model.name.toLowerCase())
  const isLoaded = own.some(({ state }) => state === 'loaded')
  const { parameter_size, quantization_level } = model.details
  const facts = [
    parameter_size,
    quantization_level,
    model.size > 0 && formatSize(model.size),
    formatAgo(Date.parse(model.modified_at))
  ]
  const load = () => attempt(() => ask('POST', 'api/load', { body: { model: model.name, stream: false } }))
  const unload = () => attempt(() => ask('POST', 'api/stop', { body: { model: model.name } }))
  return (
    <li class="card model-line">
      <div class="row">
        <div class="grow">
          <h2>{model.name}</h2>
          <p class="quiet">{facts.filter(Boolean).join(' · ')}</p>
        </div>
        {model.pinned && <span class="chip">{t.pinned}</span>}
        {model.capabilities
          .filter(capability => capability !== 'completion')
          .map(capability => (
            <span key={capability} class="chip">
              {labelFor(t.capabilities, capability)}
            </span>
          ))}
        {model.capabilities.includes('completion') && (
          <button
            type="button"
            class="button"
            onClick={() => {
              lastModel.value = model.name
              go(['chat'])
            }}
          >
            {t.chat}
          </button>
        )}
        {may('operator') && own.length === 0 && (
          <button type="button" class="button" onClick={() => void load()}>
            {t.load}
          </button>
        )}
        {may('operator') && own.length > 0 && (
          <button type="button" class="button" onClick={() => void unload()}>
            <Icon name="eject" size={16} />
            {isLoaded ? t.unload : t.stopLoading}
          </button>
        )}
        <Menu label={`${t.more}: ${model.name}`} class="menu-end">
          {close => (
            <>
              <MenuItem
                onSelect={() => {
                  close()
                  setOpen('details')
                }}
              >
                {t.details}
              </MenuItem>
              {may('admin') && (
                <MenuItem
                  onSelect={() => {
                    close()
                    setOpen('settings')
                  }}
                >
                  {t.settings}
                </MenuItem>
              )}
              {may('operator') && model.name.includes(':') && (
                <MenuItem
                  onSelect={async () => {
                    close()
                    const body = { model: model.name }
                    if (await attempt(() => ask('POST', 'api/default', { body })))
                      notify(fill(t.isDefault, { model: model.name }))
                  }}
                >
                  {t.makeDefault}
                </MenuItem>
              )}
              {may('operator') && (
                <MenuItem
                  icon="trash"
                  danger
                  onSelect={() => {
                    close()
                    setOpen('deleting')
                  }}
                >
                  {t.delete}
                </MenuItem>
              )}
            </>
          )}
        </Menu>
      </div>
      {own.map(engine => (
        <EngineLine key={engine.mode} engine={engine} />
      ))}
      {conversions.value
        .filter(({ model: name }) => name === model.name && !own.some(({ state }) => state !== 'loaded'))
        .map(({ dtype, status, progress }) => (
          <WorkLine key={dtype} status={`${dtype}: ${statusText(status)}`} progress={progress} />
        ))}
      {model.failure && own.length === 0 && <p class="is-error">{model.failure.message}</p>}
      {model.failure?.code === 'conversion_not_installed' && own.length === 0 && (
        <InstallConverter onDone={() => void load()} />
      )}
      {open === 'details' && (
        <Dialog title={model.name} onClose={() => setOpen('')}>
          <ModelDetails name={model.name} />
        </Dialog>
      )}
      {open === 'settings' && (
        <Dialog title={`${t.settings}: ${model.name}`} onClose={() => setOpen('')}>
          <ModelSettingsForm name={model.name} onDone={() => setOpen('')} />
        </Dialog>
      )}
      {open === 'deleting' && (
        <ConfirmDialog
          title={fill(t.deleteModelTitle, { model: model.name })}
          text={fill(t.deleteModelText, { size: formatSize(model.size) })}
          action={t.delete}
          onClose={() => setOpen('')}
          onConfirm={() => void attempt(() => ask('DELETE', 'api/delete', { body: { model: model.name } }))}
        />
      )}
    </li>
  )
}

/** The progress of a task for a model. */
function WorkLine({ status, progress }: { status: string; progress: number | undefined }) {
  return (
    <div class="engine-line">
      <p class="quiet">{status}</p>
      {progress !== undefined && <progress max={1} value={progress} aria-label={status} />}
    </div>
  )
}

/** The state of a model's engine: loading progress, or busy slots. */
function EngineLine({ engine }: { engine: EngineState }): ComponentChild {
  const t = texts.value
  if (engine.state !== 'loaded') {
    const { progress, status, state } = engine
    const text = status ? statusText(status) : labelFor(t.engineStates, state)
    return <WorkLine status={engine.member === undefined ? text : `${engine.member}: ${text}`} progress={progress} />
  }
  const until = engine.expires_at.startsWith('2999')
    ? t.forEver
    : fill(t.until, { time: formatTime(engine.expires_at) })
  const parts = [
    engine.member,
    engine.mode === 'chat' ? t.inMemory : `${t.inMemory} (${engine.mode})`,
    engine.memory && `${t.memory} ${formatSize(engine.size)}`,
    fill(t.contextOf, { tokens: formatNumber(engine.context_length) }),
    fill(t.slots, { running: engine.running, all: engine.slots }),
    engine.queued > 0 ? fill(t.waitingCount, { count: engine.queued }) : undefined,
    until
  ]
  return <p class="engine-line is-loaded">{parts.filter(part => part !== undefined).join(' · ')}</p>
}

const formatTime = (iso: string) => new Date(iso).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' })
